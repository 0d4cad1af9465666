package core

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

func (s *script) loads() {
	fs, ps := s.core.Loads(s.now)
	slices.SortFunc(fs, func(a, b FunctionLoad) int {
		return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Name, b.Name))
	})
	for _, f := range fs {
		limit := ""
		if f.Limit >= 0 {
			limit = fmt.Sprintf(", %s bears %v", f.Downstream, f.Limit)
		}
		s.printf("%s/%s: %d wait, %d run, %d came, %d ended in %v%s", f.Tenant, f.Name, f.Waiting, f.Running, f.Arrived, f.Ended, f.Busy, limit)
	}
	for _, p := range ps {
		var names []string
		for _, f := range p.Functions {
			names = append(names, f.Tenant+"/"+f.Name)
		}
		s.printf("%s:", strings.Join(names, "+"))
		for _, x := range p.Executors {
			draining := ""
			if x.Draining {
				draining = ", draining"
			}
			s.printf("  %s: %d of %d slots for %v%s", cmp.Or(x.Name, "?"), x.Running, x.Slots, x.Busy, draining)
		}
	}
}
