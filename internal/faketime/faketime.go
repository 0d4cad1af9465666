// Package faketime is how tests let time pass: in a bubble of testing/synctest only, where it costs nothing and is exact. No test calls
// time.Sleep (arch_test.go): a real sleep is too short on a loaded machine and too long on every other.
package faketime

import "time"

// Pass returns when d of the bubble's time has passed. It panics outside of a bubble.
func Pass(d time.Duration) {
	if time.Now().Year() >= 2020 { // a bubble's clock begins with the year 2000
		panic("faketime: a sleep outside of a bubble; wait for a condition with a bound")
	}
	time.Sleep(d)
}
