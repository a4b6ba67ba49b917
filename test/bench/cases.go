package bench

import (
	"fmt"
	"slices"
)

// allCases are those of all suites, in the order in which they are measured.
var allCases = slices.Concat([]Case{
	pair("1x40us-every-3ms", single, 1, p99Within(220), "foundation", "quick", "unprivileged"),
	pair("50x10us-synced", synced(10, 0), 1, both(p99Times(1.3), shareAtLeast(0.95)), "foundation", "quick", "unprivileged"),
	pair("50x10us-synced-every-10ms", every10ms, 1, both(p99Times(1.3), shareAtLeast(0.95)), "foundation"),
	pair("smem200k-132-blocks", synced(20, 200), 1, p99Times(1.3), "foundation"),
	pair("smem227k-132-blocks", synced(20, 227), 1, p99Times(1.3), "foundation"),
	pair("cooperative", cooperative, 1, p99Times(1.3), "foundation"),
	pair("50x10us-context-synced", wholeCtx, 1, criterion{}, "foundation"),
	pair("two-be", synced(10, 0), 2, both(p99Times(1.3), shareAtLeast(0.9)), "foundation"),
	pair("four-be", synced(10, 0), 4, both(p99Times(1.3), shareAtLeast(0.9)), "foundation"),
	hinted("explicit-300us-1x40us", announcedSingle, explicitOnly, p99WithinOfAlone(10)),
	hinted("explicit-300us-50x10us", announcedSynced, explicitOnly, p99TimesAlone(1.05)),
	{"preparation", "lc p50 <= alone p50 + (increase without preparation - preparation) + 15 us", []string{"hints"}, 75, measurePreparation},
	hinted("periodic-20hz", paced(50_000, 0, 14), arrivalOnly, bothHinted(p99WithinOfAlone(40), littleLost)),
	hinted("periodic-100hz", paced(10_000, 0, 7), arrivalOnly, bothHinted(p99WithinOfAlone(40), littleLost)),
	hinted("periodic-220hz", paced(4_545, 0, 5), arrivalOnly, bothHinted(p99WithinOfAlone(40), littleLost)),
	hinted("poisson-100hz", paced(0, 10_000, 7), arrivalOnly, bothHinted(notWorse, littleLost)),
	hinted("wrong-hints-100hz", wrongHints, explicitOnly, littleLost),
	mpsPair("mps-1x40us-beside-10us-blocks", single, 10, p99Times(1.1)),
	mpsPair("mps-1x40us-beside-100us-blocks", single, 100, criterion{}),
	mpsPair("mps-50x10us-synced-beside-10us-blocks", synced(10, 0), 10, both(p99Times(1.15), shareAtLeast(0.85))),
	mpsPair("mps-50x10us-synced-beside-100us-blocks", synced(10, 0), 100, shareAtLeast(0.85)),
	streamCase("stream-10us-blocks", 10, 10, true),
	streamCase("stream-100us-blocks", 100, 10, true),
	streamCase("stream-10us-blocks-kernels-of-5ms", 10, 500, false),
	pairedCase("launch-off", "ns", false, launchCost("off")),
	pairedCase("launch-lc", "ns", false, launchCost("lc")),
	pairedCase("launch-be", "ns", false, launchCost("be")),
	pairedCase("be-rate", "kernels/s", true, ownRateOfBE),
	pairedCase("lc-1x40us", "us p50", false, besideNobody(single)),
	pairedCase("lc-50x10us-synced", "us p50", false, besideNobody(synced(10, 0))),
	{"launch-overhead", "<= 50 ns more", []string{"foundation"}, 30, measureLaunch},
	{"be-alone", "BE >= 0.99 of without the library", []string{"foundation"}, 20, measureBEAlone},
	{"idle", "<= 0.5 % of a core, <= 15 MB", []string{"foundation"}, 15, measureIdle},
	{"identity", "all identical", []string{"foundation"}, 12, measureIdentity},
	graphCase("train"),
	graphCase("gemmfp64"),
	graphCase("infer"),
	{"resnet50-eager-alone", "library costs <= 1 % of p50", []string{"pytorch"}, 130, measureEager},
	{"nvtx-resnet50", fmt.Sprintf("%g of the requests meet a hint, p50 <= alone + %d us", nvtxMet, nvtxLaterUs), []string{"nvtx"}, 45, measureNVTX},
	{"http-resnet50", fmt.Sprintf("p99 <= %g x alone, BE >= %g of what LC leaves", httpP99, httpLeftBE), []string{"http"}, 150, measureHTTP},
	mpsTorchCase("train"),
	mpsTorchCase("infer"),
	mpsTorchCase("gemmfp64"),
}, tvmCases(), identityCases(), programCases(), fireCases(), costCases(), memoryCases(), usersCases())
