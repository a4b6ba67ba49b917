package bench

import "github.com/gpreempt/gpreempt/configs"

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
