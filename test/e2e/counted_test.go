package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// With any mechanisms, others learn whether a best-effort process has work. A process that is alone counts its work where a mechanism wants
// that. Otherwise it publishes that its work is unknown.
func TestWorkIsTold(t *testing.T) {
	t.Parallel()
	for some := range 8 {
		mechanisms := []string{`"timeslice"`}
		for i, one := range []string{`"turns"`, `"blp"`, `"swap"`} {
			if some>>i&1 != 0 {
				mechanisms = append(mechanisms, one)
			}
		}
		list := strings.Join(mechanisms, ", ")
		t.Run(strings.NewReplacer(`"`, "", ", ", " ").Replace(list), func(t *testing.T) {
			m := newMachine(t, fmt.Sprintf("mechanisms = [%s]\n[blp]\ncache_mb = 0\n", list))
			works := m.start("be")
			works.runBestEffort()
			m.joined(works)
			m.until("the work of one alone is told, or that it is not known", func() bool {
				p := m.peer(works)
				return p.Busy && p.Counted || some == 0 && !p.Busy && !p.Counted
			})
			idles := m.start("be")
			idles.count() // it has a context
			for _, role := range []string{"be", "lc"} {
				other := idles
				if role == "lc" {
					idles.finish()
					other = m.start("lc")
					other.count()
				}
				m.joined(other)
				m.until("the work of one beside another that is "+role+" is told", func() bool { p := m.peer(works); return p.Busy && p.Counted })
				m.until("that the other has none is told, or not known", func() bool { p := m.peer(other); return !p.Busy })
			}
		})
	}
}
