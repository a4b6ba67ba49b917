package broker

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"github.com/gpreempt/gpreempt/broker/wire"
)

// The broker logs a line that clients can cause once, and counts repetitions. A kind of line has one for each subject, a user or a GPU. A
// further line each minute gives the count. So no client fills a disk, or keeps others' lines away, by doing something again and again.

const (
	sayAgain = time.Minute
	// mostSaid is how many kinds and subjects have lines of their own. Further subjects of a kind share a line.
	mostSaid = 128
)

// saying identifies a line: its text, and its subject.
type saying struct{ what, subject string }

type said struct {
	level zerolog.Level
	until time.Time // no line before
	more  uint64    // times since the last one
}

const everyone = "others"

func ofUser(uid uint32) string { return "user " + strconv.FormatUint(uint64(uid), 10) }

// say returns a line to be completed with Msg(what). If the line was logged already, it returns nil, which can be used as one.
func (s *Server) say(level zerolog.Level, what, subject string) *zerolog.Event {
	return s.sayAt(level, saying{what, subject}, time.Now())
}

func (s *Server) sayAt(level zerolog.Level, key saying, now time.Time) *zerolog.Event {
	if s.said[key] == nil && len(s.said) >= mostSaid {
		key.subject = everyone
	}
	if before := s.said[key]; before != nil {
		before.more++
		return nil
	}
	s.said[key] = &said{level: level, until: now.Add(sayAgain)}
	return s.log.WithLevel(level).Str("of", key.subject)
}

// sayMore logs how often each line has been repeated since. At the end it logs all of them.
func (s *Server) sayMore(now time.Time, end bool) {
	for _, key := range slices.SortedFunc(maps.Keys(s.said), compareSayings) {
		is := s.said[key]
		if !end && is.until.After(now) {
			continue
		}
		if is.more == 0 {
			delete(s.said, key)
			continue
		}
		s.log.WithLevel(is.level).Str("of", key.subject).Uint64("again", is.more).Msg(key.what)
		is.more, is.until = 0, now.Add(sayAgain)
	}
}

func compareSayings(a, b saying) int {
	return slices.Compare([]string{a.what, a.subject}, []string{b.what, b.subject})
}

// Messages of the log that clients can cause.
const (
	sayCondition    = "a condition of the policy cannot be evaluated"
	sayControl      = "control.when of the policy cannot be evaluated"
	sayNoConnection = "no connection can be taken"
	sayUnread       = "a client does not read what it is told: it is no member any more"
	sayUnknown      = "cannot tell which process has connected"
	sayNoPod        = "it is not known which pod a container is of"
	sayNotSent      = "pages could not be sent"
	sayNoPage       = "no page could be made"
	sayNotSealed    = "pages of a client cannot be sealed"
	sayNotKept      = "what people set is lost with this broker"
	sayOthers       = "number of processes at work that are no clients, or that take no part in turns"
	saySet          = "set"
	sayAsked        = "asked"
)

// sayRefused says why somebody is refused, by the reason.
var sayRefused = func() (all map[wire.Reason]string) {
	all = map[wire.Reason]string{}
	for r := wire.RefusedVersion; r <= wire.RefusedOff; r++ {
		all[r] = "refused: " + r.String()
	}
	return all
}()
