package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// A filter of system calls (seccomp) refuses calls that the program does not need. The program runs and ends as without the library.
func TestFilters(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/filters.c")
	const atStart, forAll, forLong, reader, kills = "start", "all", "long", "reader", 0
	// Calls that the library's own threads make, and this program does not.
	ours := []int{unix.SYS_SIGALTSTACK, unix.SYS_GETRANDOM, unix.SYS_NANOSLEEP, unix.SYS_SCHED_YIELD, unix.SYS_SOCKET, unix.SYS_CONNECT, unix.SYS_BIND,
		unix.SYS_LISTEN, unix.SYS_SENDMSG, unix.SYS_RECVMSG, unix.SYS_ACCEPT4, unix.SYS_FLOCK, unix.SYS_GETSOCKOPT, unix.SYS_SETSOCKOPT,
		unix.SYS_PROCESS_VM_READV, unix.SYS_GETDENTS64, unix.SYS_FCHMODAT, unix.SYS_UNLINKAT, unix.SYS_READLINKAT, unix.SYS_FSTATFS,
		unix.SYS_SCHED_GETAFFINITY, unix.SYS_RT_SIGPENDING, unix.SYS_RT_SIGTIMEDWAIT, unix.SYS_CLOSE_RANGE, unix.SYS_IOCTL}
	for _, c := range []struct {
		name, when string
		answers    []int
		calls      []int
	}{
		{"sigaltstack", atStart, []int{int(unix.EPERM), int(unix.ENOSYS)}, []int{unix.SYS_SIGALTSTACK}},
		{"rt_sigprocmask", atStart, []int{int(unix.EPERM), int(unix.ENOSYS)}, []int{unix.SYS_RT_SIGPROCMASK}},
		{"getrandom", atStart, []int{int(unix.EPERM), int(unix.ENOSYS)}, []int{unix.SYS_GETRANDOM}},
		{"all of ours but sigaltstack", atStart, []int{int(unix.EPERM), int(unix.ENOSYS)}, ours[1:]},
		{"all of ours", atStart, []int{int(unix.EPERM)}, ours},
		{"getrandom", forAll, []int{kills}, []int{unix.SYS_GETRANDOM}},
		{"all of ours but sigaltstack", forAll, []int{int(unix.EPERM), int(unix.ENOSYS)}, ours[1:]},
		{"all of ours, and who it is", forLong, []int{int(unix.ENOSYS)}, append(slices.Clone(ours[1:]), unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID, unix.SYS_GETEGID)},
		{"all but reading", reader, []int{kills}, nil},
	} {
		for _, answer := range c.answers {
			for _, role := range []string{"lc", "be"} {
				t.Run(fmt.Sprintf("%s %s %d %s", c.when, c.name, answer, role), func(t *testing.T) {
					arguments := []string{c.when, strconv.Itoa(answer)}
					for _, call := range c.calls {
						arguments = append(arguments, strconv.Itoa(call))
					}
					run := func(role string) string {
						m := newMachine(t, "mechanisms = [\"timeslice\", \"hold\", \"gate\", \"turns\"]\n")
						cmd := m.command(role, program, arguments...)
						p := m.startAs(cmd)
						if c.when == forAll || c.when == forLong {
							p.hears("ready")
							if role != "" {
								m.joined(p) // the library's threads for the GPU are there
							}
						}
						last, _ := p.finish()
						return last
					}
					if want, got := run(""), run(role); want == "" || got != want {
						t.Errorf("it says %q, without the library %q", got, want)
					}
				})
			}
		}
	}
}
