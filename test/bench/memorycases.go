package bench

import "context"

func memoryCases() []Case {
	one := func(name string, g goal, seconds float64, measure func(ctx context.Context, s *session, name string) error) Case {
		return Case{name, g.text, []string{memorySuite}, seconds, measure}
	}
	cases := []Case{
		one("swap-20", swapGoal, 50, swapCase(20, true)),
		one("swap-40", swapGoal, 70, swapCase(40, false)),
		one("grow", growGoal, 40, measureGrowth),
		one("idle-lc", returnGoal, 40, measureReturn),
		one("lc-beside-swapping", besideGoal, 90, measureBesideSwapping),
		one("allocation-calls", callsGoal, 20, measureCalls),
		one("pair-steps", pairGoal, 150, pairCase("", pairGoal)),
	}
	for _, kind := range []string{"adds", "training", "gemm"} {
		cases = append(cases, one("pair-"+kind, pairGoal, 180, pairCase(kind, pairGoal)))
	}
	for _, kind := range []string{"nvshare-add", "nvshare-matmul"} {
		cases = append(cases, one(kind, passGoal, 180, pairCase(kind, passGoal)))
	}
	cases = append(cases, one("services", servicesGoal, 150, measureServices))
	for _, kind := range []string{"train", "infer", "gemmfp64"} {
		cases = append(cases, one("quiet-"+kind, quietGoal, 30, func(ctx context.Context, s *session, name string) error {
			return s.measureQuiet(ctx, name, kind)
		}))
	}
	return append(cases, memoryFireCases()...)
}
