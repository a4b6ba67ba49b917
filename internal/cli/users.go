package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// User is a process on a GPU, as `gpreempt doctor-probe processes` says. A nil field is unknown.
type User struct {
	PID     int     `json:"pid"` // 0, or one that no process here has: of a process that cannot be seen
	Bytes   *uint64 `json:"bytes,omitempty"`
	Percent *uint64 `json:"percent,omitempty"` // of the SMs' time lately
}

// Works says whether it had work lately, or may have had.
func (u *User) Works() bool { return u.Percent == nil || *u.Percent > 0 }

// IsHere says whether there is such a process: it may be in another PID namespace, or have ended. proc is /proc.
func (u *User) IsHere(proc string) bool {
	_, err := os.Stat(filepath.Join(proc, strconv.Itoa(u.PID)))
	return u.PID > 0 && err == nil
}

const (
	// UsersLimit is how long an answer may take: the first one initialises every GPU, unless something uses it.
	UsersLimit = 30 * time.Second
	// UsersEvery is how often to ask again: the management library takes a sample a second, or up to six.
	UsersEvery = 2 * time.Second
)

// ReadUsers reads an answer: the users of GPUs, by UUID.
func ReadUsers(lines []string) (map[string][]User, error) {
	all := map[string][]User{}
	for _, line := range lines {
		what, rest, _ := strings.Cut(line, " ")
		f := strings.Fields(rest)
		switch {
		case what == "error":
			return nil, errors.New(ProbeError(rest))
		case what == "gpu" && len(f) == 1:
			all[f[0]] = []User{}
		case what == "process" && len(f) == 4:
			if pid, err := strconv.ParseUint(f[1], 10, 31); err == nil {
				all[f[0]] = append(all[f[0]], User{PID: int(pid), Bytes: amountOf(f[2]), Percent: amountOf(f[3])})
			}
		}
	}
	return all, nil
}

func amountOf(text string) *uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return nil
	}
	return &n
}

// ProbeError is what a line of `gpreempt doctor-probe` says that begins with error.
func ProbeError(rest string) string {
	name, rest, _ := strings.Cut(rest, " ")
	code, text, _ := strings.Cut(rest, " ")
	if code == "0" {
		return text
	}
	return fmt.Sprintf("%s: %s (%s)", name, text, code)
}
