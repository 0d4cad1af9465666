package peer

import "sync"

// inFlight counts calls that are under way.
type inFlight struct {
	mu    sync.Mutex // guards following
	n     int
	ended chan struct{} // closed when none is left; nil: nobody waits for that
}

func (f *inFlight) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
}

func (f *inFlight) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n--; f.n == 0 && f.ended != nil {
		close(f.ended)
		f.ended = nil
	}
}

// none returns a channel that is closed once no call is under way.
func (f *inFlight) none() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended == nil {
		f.ended = make(chan struct{})
	}
	ended := f.ended
	if f.n == 0 {
		close(f.ended)
		f.ended = nil
	}
	return ended
}
