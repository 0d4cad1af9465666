package faketime_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headrace/headrace/internal/faketime"
)

func TestPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		faketime.Pass(time.Hour)
		if took := time.Since(began); took != time.Hour {
			t.Errorf("an hour took %v", took)
		}
	})
	defer func() {
		if recover() == nil {
			t.Error("real time passed")
		}
	}()
	faketime.Pass(time.Nanosecond)
}
