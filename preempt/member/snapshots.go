package member

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/page"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// Reach calls do with each socket for programs of a directory until one can be reached.
func Reach(directory string, do func(path string) error) error {
	return reach(directory, join.Sockets(directory), do)
}

// ReachToAsk does the same for people's requests, by the administrator's socket if the user may connect to that.
func ReachToAsk(directory string, do func(path string) error) error {
	return reach(directory, append([]string{join.AdminIn(directory)}, join.Sockets(directory)...), do)
}

func reach(directory string, sockets []string, do func(path string) error) error {
	var silent []string // sockets that had no listener
	for _, path := range sockets {
		if len(silent) > 0 && listens(path) { // a broker that starts makes its sockets in this order: the others have listeners by now
			for _, before := range silent {
				if err := do(before); !passable(err) {
					return err
				}
			}
			silent = nil
		}
		err := do(path)
		if !passable(err) {
			return err
		}
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
			silent = append(silent, path)
		}
	}
	return fmt.Errorf("%w in %s", ErrNone, directory)
}

func listens(path string) bool {
	fd, err := join.Dial(path, time.Second)
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
}

// Both reads segments by files, and by a broker if a directory of its sockets is named and one can be reached.
func Both(files func() ([]segment.Snapshot, error), broker string) ([]segment.Snapshot, error) {
	all, err := files()
	if err != nil || broker == "" {
		return all, err
	}
	shared, err := Snapshots(broker)
	if err != nil && !errors.Is(err, ErrNone) {
		return nil, fmt.Errorf("ask the broker: %w", err)
	}
	return append(all, shared...), nil
}

// Off returns processes to which a broker's policy gives no role, and the rule that says so: those of this user, or for root of all. It
// is empty where no broker answers.
func Off(directory string) map[int]string {
	off := map[int]string{}
	_ = ReachToAsk(directory, func(path string) error {
		return join.List(path, func(e *wire.Entry, _ []int) error {
			if e.Refused == uint8(wire.RefusedOff) && e.Pid != 0 {
				off[int(e.Pid)] = wire.GetText(e.Rule[:])
			}
			return nil
		})
	})
	return off
}

// Snapshots reads what a broker lets this user see of its clients, by GPU.
func Snapshots(directory string) ([]segment.Snapshot, error) {
	parts, order := map[segment.GPU][]segment.Part{}, []segment.GPU{}
	var broker string
	err := ReachToAsk(directory, func(path string) error {
		broker = path
		return join.List(path, func(e *wire.Entry, pages []int) error {
			if e.Member == 0 && e.Ended == 0 || len(pages) != 2 {
				return nil
			}
			p := segment.Part{Slot: int(e.Slot), Client: e.ID, Pid: e.Pid, Level: uint32(e.Policy.Level), Ended: e.Ended != 0, Cgroup: wire.GetText(e.Cgroup[:]),
				Turn: e.Turns&(1<<wire.TurnRun) != 0, Memory: e.Turns&(1<<wire.TurnMemory) != 0}
			for i, to := range []*[]byte{&p.State, &p.Counters} {
				*to = make([]byte, page.Size())
				if n, err := unix.Pread(pages[i], *to, 0); err != nil || n != len(*to) {
					return fmt.Errorf("read a page: %d bytes, %w", n, errors.Join(err, io.ErrUnexpectedEOF))
				}
			}
			gpu := segment.GPU{UUID: e.GPU, Slice: e.Slice == 1}
			if !slices.Contains(order, gpu) {
				order = append(order, gpu)
			}
			parts[gpu] = append(parts[gpu], p)
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	var all []segment.Snapshot
	slices.SortFunc(order, func(a, b segment.GPU) int { return cmp.Compare(a.String(), b.String()) }) // as of files
	for _, gpu := range order {
		s, err := segment.Assemble(gpu, filepath.Join(directory, gpu.String()), parts[gpu])
		if err != nil {
			return nil, err
		}
		s.Broker = broker
		all = append(all, s)
	}
	return all, nil
}
