package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// apart sees that each worker is in namespaces of its own.
func (g *gathered) apart(kinds namespaces) error {
	pids := []string{"self"}
	for _, w := range slices.Concat(g.lc, g.be) {
		pids = append(pids, strconv.Itoa(w.pid()))
	}
	for _, kind := range kinds {
		seen := map[string]bool{}
		for _, pid := range pids {
			space, err := os.Readlink(filepath.Join("/proc", pid, "ns", kind))
			if err == nil && seen[space] {
				err = errors.New("another of these processes is in the same one")
			}
			if err != nil {
				return fmt.Errorf("namespace %s of process %s: %w", kind, pid, err)
			}
			seen[space] = true
		}
	}
	return nil
}

// startsIn says why a worker that uses the driver does not start in namespaces.
func (s *session) startsIn(ctx context.Context, n namespaces) error {
	one := s.as(tenant, s.users.byBroker)
	one.namespaces = n
	w, err := one.start(ctx, "", "info")
	if err != nil {
		return err
	}
	defer w.end()
	return w.awaitReady(ctx, nil)
}

// measureNamespaces measures in the first of someNamespaces in which the driver starts, and says which that is. It is left out where there is
// none, as in a container with few rights.
func measureNamespaces(ctx context.Context, s *session, name string) error {
	var failed []string
	for _, n := range someNamespaces {
		err := s.startsIn(ctx, n)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			failed = append(failed, fmt.Sprintf("in %s: %v", n, err))
			continue
		}
		p := fourUsers
		p.namespaces = n
		p.what = fmt.Sprintf("four users in namespaces (%s), by the broker", n)
		if len(failed) > 0 {
			p.what += "; no worker starts " + strings.Join(failed, "; ")
		}
		return s.measureParties(ctx, name, fourOfOne, p, nil, likeFourOfIt)
	}
	return leftOut("no worker starts in namespaces of its own: " + strings.Join(failed, "; "))
}
