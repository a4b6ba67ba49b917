// The hold: one thread that keeps its context's TSG on the GPU until it is released.
//
// word      host-mapped; the hold ends once (int)(*word - sequence) >= 0
// limit_ns  the hold ends by itself after this long, so that a stalled process holds no GPU
// expired   host-mapped; set to sequence by a hold that reached its limit, so that the ones queued
//           behind it end at once
extern "C" __global__ void gpreempt_hold(volatile unsigned int *word, unsigned int sequence,
					 unsigned long long limit_ns, volatile unsigned int *expired)
{
	unsigned long long start, now;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
	if (*expired == sequence)
		return;
	while ((int)(*word - sequence) < 0) {
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
		if (now - start > limit_ns) {
			*expired = sequence;
			return;
		}
	}
}
