// since: sm_100
// Blocks that take over the work of blocks not begun yet.
// refused: * takes_over: blocks take over the work of others
extern "C" __global__ void takes_over(int *p)
{
	__shared__ alignas(16) unsigned long long next[2], barrier;
	asm volatile(
		"clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%0], [%1];" ::"r"(
			(unsigned)__cvta_generic_to_shared(next)),
		"r"((unsigned)__cvta_generic_to_shared(&barrier))
		: "memory");
	p[0] = next[0];
}

extern "C" __global__ void does_not(int *p) { p[threadIdx.x] = 1; }
