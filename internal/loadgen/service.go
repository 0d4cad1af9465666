package loadgen

import (
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

type answer uint8

const (
	answerTaken answer = iota
	answerThrottled
	answerFailed // takes the time of a call, too
)

// service is a downstream of so many places, and what it has seen.
type service struct {
	mu        sync.Mutex // guards following
	began     time.Time
	rng       *rand.Rand
	noise     bool
	capacity  int
	busy      int
	area      float64 // busy · seconds
	at        time.Time
	calls     int
	throttled int
	failed    int
	succeeded int
	early     int
	spent     int
	fails     map[string]int       // by task: what spends attempts
	until     map[string]time.Time // by task: the end of its retry-after
	seconds   [][2]int             // calls and throttled ones by second
}

// mark is the state of the counts at a moment.
type mark struct {
	at                       time.Time
	area                     float64
	calls, throttled, failed int
	capacity                 int
}

func (s *service) begin(capacity int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began, s.at = time.Now(), time.Now()
	s.rng, s.noise, s.capacity = rand.New(rand.NewPCG(1, 2)), true, capacity
	s.fails, s.until = map[string]int{}, map[string]time.Time{}
}

func (s *service) pass(now time.Time) {
	s.area += float64(s.busy) * now.Sub(s.at).Seconds()
	s.at = now
}

// enter answers a call of a task.
func (s *service) enter(id string, attempt int, now time.Time) (a answer, retryAfter time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Before(s.until[id]) {
		s.early++
	}
	if attempt != s.fails[id]+1 {
		s.spent++
	}
	second := int(now.Sub(s.began) / time.Second)
	for len(s.seconds) <= second {
		s.seconds = append(s.seconds, [2]int{})
	}
	s.calls++
	s.seconds[second][0]++
	if s.busy >= s.capacity || s.noise && s.rng.Float64() < strayShare {
		s.throttled++
		s.seconds[second][1]++
		after := time.Duration(50+s.rng.IntN(250)) * time.Millisecond
		s.until[id] = now.Add(after)
		return answerThrottled, after
	}
	s.pass(now)
	s.busy++
	if s.noise && s.rng.Float64() < failShare {
		s.failed++
		s.fails[id]++
		return answerFailed, 0
	}
	return answerTaken, 0
}

func (s *service) leave(id string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pass(time.Now())
	s.busy--
	if ok {
		s.succeeded++
		delete(s.fails, id)
		delete(s.until, id)
	}
}

func (s *service) resize(capacity int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.capacity = capacity
}

func (s *service) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.capacity
}

// calm ends strays and failures.
func (s *service) calm(capacity int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noise, s.capacity = false, capacity
}

func (s *service) done() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.succeeded
}

func (s *service) mark() mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pass(time.Now())
	return mark{s.at, s.area, s.calls, s.throttled, s.failed, s.capacity}
}

func (s *service) between(name string, a, b mark) ThrottlePhase {
	d := b.at.Sub(a.at).Seconds()
	return ThrottlePhase{Name: name, Seconds: round(d, 1), Capacity: b.capacity, Use: round((b.area-a.area)/d/float64(b.capacity), 4),
		Calls: b.calls - a.calls, Throttled: b.throttled - a.throttled, Failed: b.failed - a.failed}
}

// settled is how many seconds after a moment the first five begin with less than 5 % throttled; where five hold so few
// calls that three throttles are more, three are few.
func (s *service) settled(from time.Time) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := int(from.Sub(s.began) / time.Second)
	for i := first; i+5 <= len(s.seconds); i++ {
		calls, throttled := 0, 0
		for _, c := range s.seconds[i : i+5] {
			calls, throttled = calls+c[0], throttled+c[1]
		}
		if throttled <= 3 || float64(throttled) < 0.05*float64(calls) {
			return float64(i - first)
		}
	}
	return 999 // never
}

func round(v float64, digits int) float64 {
	p := math.Pow(10, float64(digits))
	return math.Round(v*p) / p
}
