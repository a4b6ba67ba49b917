package bench

import (
	"context"
	"os"
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
	"github.com/gpreempt/gpreempt/test/bench/result"
)

// Requests that are announced.
var (
	announcedSingle = load{work: single.work, kernels: 1, gapUs: 3000, requests: 600, prepareUs: 300, hint: true}
	announcedSynced = func() load { l := synced(10, 0); l.prepareUs, l.hint = 300, true; return l }()
)

// Sections of the configuration, by which sources give hints.
var (
	noHints      = configs.HintsFrom(configs.HintCopy) // copies are hints that ask nothing of the application
	explicitOnly = configs.HintsFrom(configs.HintCopy, configs.HintExplicit)
)

// followHints looks now and then what becomes of the hints of the newest LC process, until stop.
func (s *session) followHints(ctx context.Context, wanted bool) (stop func() *result.Hints) {
	config, err := configs.Load(s.config)
	if err != nil || !wanted { // a broken configuration is for the workers to report
		return func() *result.Hints { return nil }
	}
	ctx, cancel := context.WithCancel(ctx)
	seen := make(chan *result.Hints)
	go func() {
		var last *result.Hints
		for {
			if h := hintsIn(segment.Directory(config.Segment.Directory, os.Getuid())); h != nil {
				last = h
			}
			select {
			case <-ctx.Done():
				seen <- last
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	return func() *result.Hints {
		cancel()
		return <-seen
	}
}

// hintsIn is what became of the hints of the LC process that started last, or nil if there is none.
func hintsIn(directory string) (found *result.Hints) {
	snapshots, err := segment.SnapshotsIn(directory)
	if err != nil {
		return nil
	}
	started := uint64(0)
	for _, snapshot := range snapshots {
		for _, p := range snapshot.Peers {
			if p.Level == 0 && p.StartedNs >= started {
				started, found = p.StartedNs, &result.Hints{SwitchUs: p.SwitchUs, SpunNs: p.HintSpunNs, Sources: p.Hints}
			}
		}
	}
	return found
}
