package bench

import "slices"

// allCases are those of all suites, in the order in which they are measured.
var allCases = slices.Concat([]Case{
	pair("1x40us-every-3ms", single, 1, p99Within(220), "foundation"),
	pair("50x10us-synced", synced(10, 0), 1, both(p99Times(1.3), shareAtLeast(0.95)), "foundation"),
	pair("50x10us-synced-every-10ms", every10ms, 1, both(p99Times(1.3), shareAtLeast(0.95)), "foundation"),
	pair("smem200k-132-blocks", synced(20, 200), 1, p99Times(1.3), "foundation"),
	pair("smem227k-132-blocks", synced(20, 227), 1, p99Times(1.3), "foundation"),
	pair("cooperative", cooperative, 1, p99Times(1.3), "foundation"),
	pair("50x10us-context-synced", wholeCtx, 1, criterion{}, "foundation"),
	pair("two-be", synced(10, 0), 2, both(p99Times(1.3), shareAtLeast(0.9)), "foundation"),
	pair("four-be", synced(10, 0), 4, both(p99Times(1.3), shareAtLeast(0.9)), "foundation"),
	mpsPair("mps-1x40us-beside-10us-blocks", single, besideBlocks(10), p99Times(1.1)),
	mpsPair("mps-1x40us-beside-5-to-15us-blocks", single, uneven(besideBlocks(10)), criterion{}),
	mpsPair("mps-1x40us-beside-100us-blocks", single, besideBlocks(100), criterion{}),
	mpsPair("mps-50x10us-synced-beside-10us-blocks", synced(10, 0), besideBlocks(10), both(p99Times(1.15), shareAtLeast(0.85))),
	mpsPair("mps-50x10us-synced-beside-100us-blocks", synced(10, 0), besideBlocks(100), shareAtLeast(0.85)),
	mpsPair("mps-explicit-300us-1x40us-beside-10us-blocks", announcedSingle, besideBlocks(10), p99Times(1.1)),
	mpsPair("mps-explicit-300us-1x40us-beside-5-to-15us-blocks", announcedSingle, uneven(besideBlocks(10)), p99Times(1.1)),
	mpsPair("mps-explicit-300us-1x40us-beside-100us-blocks", announcedSingle, besideBlocks(100), p99Times(1.1)),
	mpsPair("mps-explicit-300us-50x10us-synced-beside-10us-blocks", announcedSynced, besideBlocks(10), p99Times(1.15)),
	mpsPair("mps-1x40us-beside-10us-blocks-on-12-streams", single, onManyStreams(10), criterion{}),
	streamCase("stream-10us-blocks", 10, 10, true),
	streamCase("stream-100us-blocks", 100, 10, true),
	streamCase("stream-10us-blocks-kernels-of-5ms", 10, 500, false),
	narrowCase("stream-narrow-16-blocks", 16),
	narrowCase("stream-narrow-66-blocks", 66),
	fullStopCase("stream-full-stop-10us-blocks", 10),
	fullStopCase("stream-full-stop-100us-blocks", 100),
	{"launch-overhead", "<= 50 ns more", []string{"foundation"}, 30, measureLaunch},
	{"be-alone", "BE >= 0.99 of without the library", []string{"foundation"}, 20, measureBEAlone},
	{"idle", "<= 0.5 % of a core, <= 15 MB", []string{"foundation"}, 15, measureIdle},
}, programCases(), fireCases(), costCases(), memoryCases(), servingCases(), stallsCases(), paperCases())
