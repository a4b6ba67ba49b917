package broker

import "time"

// Messages and joins of users, and how many they may have.

// payerAgain is how long the connections of a payer who has had its part are not read at least: there may be many, and each look costs some.
const payerAgain = 50 * time.Millisecond

// spend takes a message of a connection, and of all that its payer has. A wait says that there is none left, and for how long it is not
// read.
func (s *Server) spend(c *connection, now time.Time) (wait time.Duration) {
	if wait = c.bucket.take(now, s.policy.Quota.MessagesPerSecond); wait > 0 {
		return wait
	}
	b := s.spending[c.payer]
	if b == nil {
		s.forgetSpending(now)
		b = &bucket{}
		s.spending[c.payer] = b
	}
	if wait = b.take(now, s.policy.Quota.MessagesPerUID); wait > 0 {
		c.bucket.left++
		return max(wait, payerAgain)
	}
	return 0
}

// charge counts so many messages more, or fewer, of the payer: for one that costs as much. Those that follow pay for it.
func (s *Server) charge(c *connection, messages int) {
	if b := s.spending[c.payer]; b != nil {
		b.left -= float64(messages)
	}
}

// forgetSpending forgets payers who have all of their part again.
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
}

// joinsPerSecond is how many clients of a user join in a second, when so many at once as it may have connections have joined: all
// members of a GPU are told of each.
const joinsPerSecond = 64

// joins takes a join of a user. A wait says that it has had its part, and when it has more.
func (s *Server) joins(uid uint32, now time.Time) (wait time.Duration) {
	b := s.joining[uid]
	if b == nil {
		b = &bucket{}
		s.joining[uid] = b
	}
	return b.takeOf(now, joinsPerSecond, float64(s.policy.Quota.ConnectionsPerUID))
}

// forgetJoins forgets users who have all of their part again.
func (s *Server) forgetJoins(now time.Time) {
	for uid, b := range s.joining {
		if now.Sub(b.at).Seconds()*joinsPerSecond >= float64(s.policy.Quota.ConnectionsPerUID) {
			delete(s.joining, uid)
		}
	}
}
