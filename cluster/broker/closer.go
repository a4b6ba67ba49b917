package broker

import (
	"sync"

	"golang.org/x/sys/unix"
)

// To close the last descriptor of a file may take as long as who opened it likes: a TCP socket waits until its data are sent
// (SO_LINGER), a file of a network or of FUSE until somebody answers. So the broker closes nothing in its loop that a client could have
// put there: a descriptor that it sent, or a connection in which one lies unread. Linux 6.16 lets nobody send any (SO_PASSRIGHTS).

const soPassRights = 83 // SO_PASSRIGHTS

// closer closes descriptors on threads of its own, one for each user.
type closer struct {
	mutex  sync.Mutex
	queues map[uint32][]closing // of users who have a thread
}

type closing struct {
	descriptors []int
	done        func()
}

// close has the descriptors closed by the user's thread, which then calls done.
func (c *closer) close(uid uint32, done func(), descriptors ...int) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	queue, runs := c.queues[uid]
	c.queues[uid] = append(queue, closing{descriptors, done})
	if !runs {
		go c.run(uid)
	}
}

func (c *closer) run(uid uint32) {
	for {
		c.mutex.Lock()
		queue := c.queues[uid]
		if len(queue) == 0 {
			delete(c.queues, uid)
			c.mutex.Unlock()
			return
		}
		c.queues[uid] = queue[1:]
		c.mutex.Unlock()
		for _, fd := range queue[0].descriptors {
			unix.Close(fd)
		}
		queue[0].done()
	}
}
