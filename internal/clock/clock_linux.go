package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// offset reads both clocks. It is not ok when something came between the two reads.
func offset() (time.Duration, bool) {
	var before, boot, after unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &before) != nil ||
		unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil ||
		unix.ClockGettime(unix.CLOCK_MONOTONIC, &after) != nil {
		return 0, false
	}
	mono := before.Nano()
	return time.Duration(boot.Nano() - mono), after.Nano()-mono < int64(step)/4
}
