//go:build !linux

package poolrun

// bounds are a child's limits: none here.
type bounds struct{ how string }

func bind(_, _ int, memory int64, cpu float64) *bounds {
	if memory == 0 && cpu == 0 {
		return &bounds{how: "no limits"}
	}
	return &bounds{how: "limits are not possible on this system"}
}

func (b *bounds) release() {}
