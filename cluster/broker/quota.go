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

// first is the first of the list that is of the owner that has most in it.
func first[T any](list []T, of func(T) owner) (i int) {
	has := counts[owner]{}
	for _, one := range list {
		has[of(one)]++
	}
	most := 0
	for j, one := range list {
		if n := has[of(one)]; n > most {
			i, most = j, n
		}
	}
	return i
}
