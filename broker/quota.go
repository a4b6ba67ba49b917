package broker

import "time"

// counts says how many of something each user, or each cgroup, has.
type counts[K comparable] map[K]int

// add counts one more unless there are so many already.
func (c counts[K]) add(key K, most int) bool {
	if c[key] >= most {
		return false
	}
	c[key]++
	return true
}

func (c counts[K]) remove(key K) {
	if c[key]--; c[key] <= 0 {
		delete(c, key)
	}
}

// bucket lets so many messages through a second, and as many at once.
type bucket struct {
	left float64
	at   time.Time
}

// take takes one message. A wait says that there is none left, and when there is.
func (b *bucket) take(now time.Time, perSecond int) (wait time.Duration) {
	return b.takeOf(now, float64(perSecond), float64(perSecond))
}

// takeOf takes one where there are so many a second, and so many at once.
func (b *bucket) takeOf(now time.Time, rate, most float64) (wait time.Duration) {
	if b.at.IsZero() {
		b.left = most
	} else {
		b.left = min(b.left+now.Sub(b.at).Seconds()*rate, most)
	}
	b.at = now
	if b.left < 1 {
		return time.Duration((1-b.left)/rate*float64(time.Second)) + time.Microsecond // never 0: that would let it through
	}
	b.left--
	return 0
}

// payer is whose messages are counted together, whatever connections they come by: a user's, or a container's, since in many all are root's.
type payer struct {
	uid       uint32
	container string // "": none, or not known yet
}

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
