package join

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/wire"
)

// AnswersWithin is how long the broker has for each message of an answer. Tests give it more, for a loaded machine.
var AnswersWithin = 2 * time.Second

// ask makes a request and calls each with the messages of the answer until Done, which it returns.
func ask(path string, question wire.Message, each func(wire.Message, []int) error) (*wire.Done, error) {
	fd, err := connect(path, AnswersWithin)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := request(fd, question); err != nil {
		return nil, err
	}
	for {
		m, fds, err := receive(fd, time.Now().Add(AnswersWithin))
		if err != nil {
			return nil, err
		}
		if done, is := m.(*wire.Done); is {
			return done, nil
		}
		err = each(m, fds)
		wire.CloseAll(fds)
		if err != nil {
			return nil, err
		}
	}
}

// List calls each with what the broker knows of each client, and with the client's pages, state and counters, where this user may
// read them. The descriptors are closed after the call.
func List(path string, each func(e *wire.Entry, pages []int) error) error {
	_, err := ask(path, &wire.List{}, func(m wire.Message, fds []int) error {
		e, is := m.(*wire.Entry)
		if !is {
			return fmt.Errorf("%w: %s", ErrBroker, wire.Name(m))
		}
		return each(e, fds)
	})
	return err
}

// Query is what a client of this process with a layout of pages would get on any GPU, if it wanted a level.
func Query(path string, wanted int, layout uint32, within time.Duration) (wire.Policy, error) {
	fd, err := connect(path, within)
	if err != nil {
		return wire.Policy{}, err
	}
	defer unix.Close(fd)
	if err := request(fd, &wire.Query{Wanted: uint8(wanted), Layout: layout}); err != nil {
		return wire.Policy{}, err
	}
	m, fds, err := receive(fd, time.Now().Add(within))
	wire.CloseAll(fds)
	if err != nil {
		return wire.Policy{}, err
	}
	answer, is := m.(*wire.Changed)
	if !is {
		return wire.Policy{}, fmt.Errorf("%w: %s", ErrBroker, wire.Name(m))
	}
	return answer.Policy, nil
}

// Set changes all clients of a process, and returns how many there are.
func Set(path string, m *wire.Set) (clients int, err error) {
	done, err := ask(path, m, func(m wire.Message, _ []int) error { return fmt.Errorf("%w: %s", ErrBroker, wire.Name(m)) })
	if err != nil {
		return 0, err
	}
	return int(done.Count), nil
}

// Ask passes a request on to a client. It returns false where there is no such client any more.
func Ask(path string, m *wire.Ask) (there bool, err error) {
	done, err := ask(path, m, func(m wire.Message, _ []int) error { return fmt.Errorf("%w: %s", ErrBroker, wire.Name(m)) })
	if err != nil {
		return false, err
	}
	return done.Count > 0, nil
}

// Statistics is what the broker has counted.
func Statistics(path string) (counted *wire.Counted, err error) {
	fd, err := connect(path, AnswersWithin)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := request(fd, &wire.Statistics{}); err != nil {
		return nil, err
	}
	m, fds, err := receive(fd, time.Now().Add(AnswersWithin))
	wire.CloseAll(fds)
	if err != nil {
		return nil, err
	}
	counted, is := m.(*wire.Counted)
	if !is {
		return nil, fmt.Errorf("%w: %s", ErrBroker, wire.Name(m))
	}
	return counted, nil
}

// Policy is the text of the policy that is in force.
func Policy(path string) (string, error) {
	var text strings.Builder
	_, err := ask(path, &wire.Policies{}, func(m wire.Message, _ []int) error {
		part, is := m.(*wire.Text)
		if !is {
			return fmt.Errorf("%w: %s", ErrBroker, wire.Name(m))
		}
		text.Write(part.Text[:part.Length])
		return nil
	})
	return text.String(), err
}
