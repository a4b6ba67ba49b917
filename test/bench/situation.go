package bench

import "context"

// Case is one situation that a suite measures.
type Case struct {
	Name    string
	Target  string
	suites  []string
	seconds float64 // that it takes, about, on an H200
	// measure adds the case's rows to the session's report.
	measure func(ctx context.Context, s *session, name string) error
}

// leftOut is why a case cannot be measured on this machine. That is no failure, and the next call tries again.
type leftOut string

func (l leftOut) Error() string { return string(l) }
