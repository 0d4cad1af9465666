package task

import (
	"fmt"
	"time"
)

// Tenant is what an operator grants a tenant. Zero fields have their defaults (WithDefaults).
type Tenant struct {
	// DrainMax is how long the tenant's ready tasks may take to finish, at the rate at which they finish now. While
	// they would take longer, new ones are accepted at that rate only. 1 s to 10 years; 24 h.
	DrainMax time.Duration
	// MaxRows and MaxBytes bound the tasks that are stored and not finished, and their payloads. 10 million; 16 GiB.
	MaxRows  int64
	MaxBytes int64
	// Rate and Burst bound submits, in tasks a second and at once; no Rate: they are not bounded. Burst: a second's worth.
	Rate  float64
	Burst float64
	// Weight is the tenant's part of what several want: of the executors they share, and of submits when there is too
	// much. 1 to 1,000; 1.
	Weight int
	// Class is the operator's standing of the tenant: critical 16 : standard 4 : batch 1 of the turns on executors that
	// tenants of several share. 0: standard.
	Class TenantClass
}

// TenantClass is the operator's standing of a tenant.
type TenantClass uint8

// The classes, in the order in which ties between them are broken. The zero value is the default, Standard.
const (
	Critical      TenantClass = iota + 1
	Standard                  // 4 turns for 16 of critical
	Batch                     // 1 turn for 16 of critical
	TenantClasses = 3         // how many there are
)

var tenantClassNames = [...]string{"", "critical", "standard", "batch"}

func (c TenantClass) String() string {
	if int(c) < len(tenantClassNames) {
		return tenantClassNames[c]
	}
	return fmt.Sprintf("class(%d)", uint8(c))
}

// ParseTenantClass reads a class's text; the empty text is none. Its error is a *FieldError for "class".
func ParseTenantClass(name string) (TenantClass, error) {
	for i, n := range tenantClassNames {
		if n == name {
			return TenantClass(i), nil
		}
	}
	return 0, &FieldError{Field: "class", Value: name, Want: "critical, standard or batch"}
}

// Defaults and ranges of a Tenant.
const (
	DefaultDrainMax = 24 * time.Hour
	DefaultMaxRows  = 10_000_000
	DefaultMaxBytes = 16 << 30
	MaxTenantRows   = 1_000_000_000_000
	MaxTenantBytes  = 1 << 50
	MaxTenantRate   = 10_000_000
	MinTenantRate   = 0.001
	MaxTenantWeight = 1000
	minDrainMax     = time.Second
)

// Validate names the field that is out of its range.
func (t Tenant) Validate() error {
	if t.DrainMax != 0 {
		if err := Duration("drain_max", t.DrainMax, minDrainMax, MaxDelay); err != nil {
			return err
		}
	}
	whole := func(field string, v, most int64) error {
		if v < 0 || v > most {
			return &FieldError{Field: field, Value: fmt.Sprint(v), Want: fmt.Sprintf("1 to %d, or 0 for the default", most)}
		}
		return nil
	}
	if err := whole("max_rows", t.MaxRows, MaxTenantRows); err != nil {
		return err
	}
	if err := whole("max_bytes", t.MaxBytes, MaxTenantBytes); err != nil {
		return err
	}
	if err := whole("weight", int64(t.Weight), MaxTenantWeight); err != nil {
		return err
	}
	if t.Class > Batch {
		return &FieldError{Field: "class", Value: t.Class.String(), Want: "critical, standard or batch"}
	}
	if t.Rate != 0 && !(t.Rate >= MinTenantRate && t.Rate <= MaxTenantRate) {
		return &FieldError{Field: "rate", Value: fmt.Sprint(t.Rate), Want: "0.001 to 10000000 tasks a second, or 0 for any"}
	}
	if t.Burst != 0 && !(t.Burst >= 1 && t.Burst <= MaxTenantRate) {
		return &FieldError{Field: "burst", Value: fmt.Sprint(t.Burst), Want: "1 to 10000000 tasks, or 0 for a second's worth"}
	}
	if t.Burst != 0 && t.Rate == 0 {
		return &FieldError{Field: "burst", Value: fmt.Sprint(t.Burst), Want: "a rate with it"}
	}
	return nil
}

// WithDefaults returns t with its zero fields filled in.
func (t Tenant) WithDefaults() Tenant {
	if t.DrainMax == 0 {
		t.DrainMax = DefaultDrainMax
	}
	if t.MaxRows == 0 {
		t.MaxRows = DefaultMaxRows
	}
	if t.MaxBytes == 0 {
		t.MaxBytes = DefaultMaxBytes
	}
	if t.Burst == 0 && t.Rate != 0 {
		t.Burst = max(t.Rate, 1)
	}
	if t.Weight == 0 {
		t.Weight = 1
	}
	if t.Class == 0 {
		t.Class = Standard
	}
	return t
}
