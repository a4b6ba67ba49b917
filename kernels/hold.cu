// The hold: one thread that keeps its context's TSG on the GPU until it is released. Holds are queued one
// behind another on a stream of their own; each link of such a chain has a sequence of its own.
//
// word      host-mapped. Low half: the link ends once (int)(low - sequence) >= 0. High half: the beat, which the host
//           changes to renew the link's lease.
// limit_ns  the link ends by itself after this long.
// lease_ns  the link ends by itself when the beat has not changed for this long: the process is stopped, or its
//           watcher is stuck behind a call that waits for the link.
// expired   host-mapped; set to the chain's number by a link that ended by itself, so that the ones
//           queued behind it end at once.
// place     host-mapped; set to sequence << 32 | SM when the link begins to run
extern "C" __global__ void gpreempt_hold(volatile unsigned long long *word, unsigned int sequence, unsigned int chain,
					 unsigned long long limit_ns, unsigned long long lease_ns,
					 volatile unsigned int *expired, volatile unsigned long long *place)
{
	unsigned long long now, start, renewed;
	unsigned int sm, beat = (unsigned int)(*word >> 32);
	asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
	*place = (unsigned long long)sequence << 32 | sm;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
	renewed = start;
	if (*expired == chain)
		return;
	for (;;) {
		unsigned long long seen = *word;
		if ((int)((unsigned int)seen - sequence) >= 0)
			return;
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
		// This TSG may have been switched out since the last look: only a beat that is read now counts.
		if (now - renewed > lease_ns)
			seen = *word;
		if ((unsigned int)(seen >> 32) != beat) {
			beat = (unsigned int)(seen >> 32);
			renewed = now;
		}
		if (now - start > limit_ns || now - renewed > lease_ns) {
			*expired = chain;
			return;
		}
	}
}
