// The hold: one thread that keeps its context's TSG on the GPU until it is released. Holds are queued one
// behind another on a stream of their own; each link of such a chain has a sequence of its own.
//
// word      host-mapped; the link ends once (int)(*word - sequence) >= 0
// limit_ns  the link ends by itself after this long, so that a stalled process holds no GPU
// expired   host-mapped; set to the chain's number by a link that reached its limit, so that the ones
//           queued behind it end at once
// place     host-mapped; set to sequence << 32 | SM when the link begins to run
extern "C" __global__ void gpreempt_hold(volatile unsigned int *word, unsigned int sequence, unsigned int chain,
					 unsigned long long limit_ns, volatile unsigned int *expired,
					 volatile unsigned long long *place)
{
	unsigned long long start, now;
	unsigned int sm;
	asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
	*place = (unsigned long long)sequence << 32 | sm;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
	if (*expired == chain)
		return;
	while ((int)(*word - sequence) < 0) {
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
		if (now - start > limit_ns) {
			*expired = chain;
			return;
		}
	}
}
