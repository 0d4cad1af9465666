package engine

import (
	"slices"
	"time"

	"github.com/headrace/headrace/internal/mutant"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// session is one stream to one node.
type session struct {
	id     SessionID
	node   string
	closed bool

	sending   bool // a message is on its way into the stream
	helloDue  bool
	welcomed  bool
	told      map[uint32]uint64 // epochs of the last hello
	goingAway bool

	acks     []*headracev1.Ack
	logs     []*headracev1.LogReport // of tries that ended; they go before the outcomes
	outcomes []*Try                  // ended, not yet sent in this session
	adopts   bool                    // it has become the owner of a partition: outcomes may have waited for it

	beatAt   time.Time   // of the next beat
	beats    []time.Time // when beat number n was sent: beats[(n-1) % len]
	beat     uint64      // number of the newest
	received uint64      // slots of pushes read
	credit   uint64      // slots of pushes the node may have sent in all
	saidCr   uint64      // credit that was sent
	returned uint64      // credit the node has given back
	asked    uint64      // credit it was asked to give back, in all
	saidAsk  uint64      // of that, what was sent
	answered uint64      // of that, what it has answered
	demand   int         // slots of what waits there, as it said, less what it pushed since
	unit     int         // credit is of use there in pieces of so many
	gaveAt   uint64      // number of the last grant it had a part in
	saidDr   bool        // draining was sent
	reportAt time.Time   // no look at what running tries have said before this
}

// beatsKept is how many beats a session remembers: an answer that comes later than four minutes is no use.
const beatsKept = 1024

// acksMax bounds the acks of one message.
const acksMax = 8192

// Open starts a session to a node whose stream is ready for its first message, and replaces an older
// one to the same node: from now on, what is read from that is ignored (R4).
func (e *Engine) Open(now time.Time, node string) SessionID {
	for _, old := range e.sessions {
		if old.node == node {
			e.Closed(now, old.id)
			e.fx.Close = append(e.fx.Close, old.id)
			e.dirty = true
			break
		}
	}
	e.last++
	e.sessions = append(e.sessions, &session{id: e.last, node: node, helloDue: true, beatAt: now, reportAt: now})
	return e.last
}

// Closed says that a session's stream has ended. Its tries go on, its outcomes wait for the next owner.
func (e *Engine) Closed(_ time.Time, id SessionID) {
	i := slices.IndexFunc(e.sessions, func(s *session) bool { return s.id == id })
	if i < 0 {
		return
	}
	e.sessions[i].closed = true
	e.sessions = slices.Delete(e.sessions, i, i+1)
}

// Sessions returns the open sessions, oldest first.
func (e *Engine) Sessions() []SessionID {
	ids := make([]SessionID, len(e.sessions))
	for i, s := range e.sessions {
		ids[i] = s.id
	}
	return ids
}

func (e *Engine) session(id SessionID) *session {
	for _, s := range e.sessions {
		if s.id == id {
			return s
		}
	}
	return nil
}

// Sent says that the stream has taken the last message: Message gives the next one.
func (e *Engine) Sent(id SessionID) {
	if s := e.session(id); s != nil {
		s.sending = false
	}
}

// Held returns how many tries are held of partitions that this session's node owns.
func (e *Engine) Held(id SessionID) int {
	s, n := e.session(id), 0
	if s == nil {
		return 0
	}
	for _, t := range e.tries {
		if t.part.owner == s {
			n++
		}
	}
	return n
}

// Receive takes one message of a node. What comes from a session that is not open is ignored. The
// engine keeps parts of the message.
func (e *Engine) Receive(now time.Time, id SessionID, m *headracev1.SessionResponse) {
	s := e.session(id)
	if s == nil {
		if !mutant.On("no-session-binding") || len(e.sessions) == 0 {
			return
		}
		s = e.sessions[len(e.sessions)-1]
	}
	e.past.forget(now)
	if m.Welcome != nil {
		e.welcome(s, m.Welcome)
	}
	for _, c := range m.Claims {
		e.claimAnswered(now, s, c)
	}
	if m.BeatAnswer != nil {
		e.beatAnswered(now, s, m.BeatAnswer)
	}
	for _, r := range m.Recorded {
		if t := e.held(r.TaskId, r.Token); t != nil {
			t.recorded = true
		}
	}
	for _, c := range m.Committed {
		e.committed(now, c)
	}
	for _, c := range m.Cancels {
		e.cancelTry(now, s, c)
	}
	if m.GoingAway && !s.goingAway {
		s.goingAway = true
		s.credit, s.demand = s.received+s.returned, 0 // nothing comes any more
		e.fx.GoingAway = append(e.fx.GoingAway, s.id)
		e.dirty = true
	}
	for _, p := range m.Pushes {
		e.push(now, s, p)
	}
	if m.Demand != nil && !s.goingAway {
		s.demand, s.unit = int(min(*m.Demand, 1<<20)), int(min(max(m.DemandUnit, 1), task.MaxSlots))
		e.dirty = true
	}
	if m.Recalled > s.answered {
		s.answered, s.returned = m.Recalled, max(m.Returned, s.returned)
		e.dirty = true
	}
	if s.adopts {
		s.adopts = false
		e.adopt(s)
	}
}

// welcome is a question, see the package doc. It raises the epochs; Message answers, and nothing can
// come between: whatever the answer claims was taken before.
func (e *Engine) welcome(s *session, w *headracev1.Welcome) {
	ask := s.welcomed
	s.welcomed = true
	for _, pe := range w.Epochs {
		if !mutant.On("answer-raises-nothing") {
			e.partition(pe.Partition).command(s, pe.Epoch)
		}
		ask = ask || pe.Epoch > s.told[pe.Partition]
	}
	s.helloDue = s.helloDue || ask
}

// sentAt returns when a beat of this session was sent.
func (s *session) sentAt(number uint64) (time.Time, bool) {
	if number == 0 || number > s.beat || s.beat-number >= uint64(len(s.beats)) {
		return time.Time{}, false
	}
	return s.beats[(number-1)%beatsKept], true
}

// nextBeat numbers a beat that is sent now.
func (s *session) nextBeat(now time.Time) *headracev1.Beat {
	s.beat++
	if len(s.beats) < beatsKept {
		s.beats = append(s.beats, now)
	} else {
		s.beats[(s.beat-1)%beatsKept] = now
	}
	s.beatAt = now.Add(BeatEvery)
	return &headracev1.Beat{Number: s.beat}
}
