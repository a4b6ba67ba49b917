package broker

import (
	"time"

	"golang.org/x/sys/unix"
)

// Messages and joins of owners, and how many they may have.

// ownerAgain is how long the connections of an owner that has had its part are not read at least: there may be many, and each look costs some.
const ownerAgain = 50 * time.Millisecond

// spend takes a message of a connection, and of all that its owner has. A wait says that there is none left, and for how long it is not
// read.
func (s *Server) spend(c *connection, now time.Time) (wait time.Duration) {
	if c.admin {
		return 0
	}
	if wait = c.bucket.take(now, s.policy.Quota.MessagesPerSecond); wait > 0 {
		return wait
	}
	b := s.spending[c.owner]
	if b == nil {
		s.forgetSpending(now)
		b = &bucket{}
		s.spending[c.owner] = b
	}
	if wait = b.take(now, s.policy.Quota.MessagesPerUID); wait > 0 {
		c.bucket.left++
		return max(wait, ownerAgain)
	}
	return 0
}

// charge counts so many messages more, or fewer, of the owner: for one that costs as much. The next ones pay for it.
func (s *Server) charge(c *connection, messages int) {
	if b := s.spending[c.owner]; b != nil {
		b.left -= float64(messages)
	}
}

// messageTakes is the processor time that a message may take. A message that takes more counts as several, whatever takes the time: many
// clients, conditions of the policy, groups of the asker. So an owner has at most messages_per_uid times as much of each second.
const messageTakes = 50 * time.Microsecond

// timed does something for a connection, whose owner pays for the time.
func (s *Server) timed(c *connection, do func() bool) bool {
	began := s.busy()
	done := do()
	s.charge(c, int((s.busy()-began)/messageTakes))
	return done
}

// threadTime is how long this thread has run. Run stays on one thread.
func threadTime() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now) // it is there since Linux 2.6.12
	return time.Duration(now.Nano())
}

// forgetSpending forgets owners that have all of their part again, of messages and of joins.
func (s *Server) forgetSpending(now time.Time) {
	if now.Before(s.forgets) {
		return
	}
	s.forgets = now.Add(time.Second)
	for who, b := range s.spending {
		if most := float64(s.policy.Quota.MessagesPerUID); b.left+now.Sub(b.at).Seconds()*most >= most {
			delete(s.spending, who)
		}
	}
	for who, b := range s.joining {
		if now.Sub(b.at).Seconds()*joinsPerSecond >= float64(s.policy.Quota.ConnectionsPerUID) {
			delete(s.joining, who)
		}
	}
}

// joinsPerSecond is how many clients of an owner may join in a second, after a burst of as many as it may have connections. The bound is
// there because the broker tells all members of a GPU of each join.
const joinsPerSecond = 64

// joins takes a join of an owner. A wait says that it has had its part, and when it has more.
func (s *Server) joins(of owner, now time.Time) (wait time.Duration) {
	b := s.joining[of]
	if b == nil {
		b = &bucket{}
		s.joining[of] = b
	}
	return b.takeOf(now, joinsPerSecond, float64(s.policy.Quota.ConnectionsPerUID))
}
