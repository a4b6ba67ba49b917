// watch.c - the watcher of a GPU stops domains as windows open, and resumes them as these close.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

static const uint64_t NARROW_NS = 30 * 1000;         // between two looks at what goes on in a part of the SMs
static const uint64_t MOVED_NS = 1000 * 1000 * 1000; // look again: after gp_gpu_move no process rings the old memory

// The GPU time that this level is owed for having been kept off the GPU (share.min_be).
struct debt { uint64_t ns, at_ns; };

// Accounts for the time since the last call. Returns nanoseconds to the next look; 0: none before something happens.
static uint64_t account(struct gp_gpu *g, struct debt *debt, bool was_stopped, uint64_t now)
{
	double share = gp_settings.own_share, rate = share / (1 - share);
	uint64_t limit = (uint64_t)((double)gp_settings.max_hold_ns * rate), passed = now - debt->at_ns;

	debt->at_ns = now;
	if (was_stopped)
		debt->ns += (uint64_t)((double)passed * rate);
	else
		debt->ns -= passed < debt->ns ? passed : debt->ns;
	if (!limit)
		return 0;
	if (g->forced && !debt->ns)
		g->forced = 0;
	if (!g->forced && debt->ns >= limit) {
		g->forced = 1;
		gp_ring_gate(g); // threads that wait at the gate go on
	}
	if (g->forced)
		return debt->ns;
	return (uint64_t)((double)(limit - debt->ns) / rate) + 1;
}

// Lets stopped domains go on in their widths. True: one of them may get further soon.
static bool narrow(struct gp_gpu *g)
{
	bool any = false;
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++) {
		struct gp_domain *d = blp_domains[i];
		bool pushed;
		if (d->gpu != g || !d->reasons) // another thread may make it, without a reason
			continue;
		pthread_mutex_lock(&d->control);
		if (d->context && blp_is_closed(d) && blp_enter(d->context, &pushed)) {
			any |= blp_narrow(d);
			blp_leave(pushed);
		}
		pthread_mutex_unlock(&d->control);
	}
	return any;
}

static void await_segment(struct gp_gpu *g)
{
	for (uint32_t seen = gp_events; !gp_own_slot(g); seen = gp_events)
		gp_futex_wait(&gp_events, seen, 0, false);
}

void gp_blp_watch(struct gp_gpu *g)
{
	await_segment(g);

	int mode = CU_STREAM_CAPTURE_MODE_RELAXED; // captures of the program must not be broken
	struct debt debt = {0, gp_now_ns()};
	static struct blp_windows of[GP_GPUS];
	struct blp_windows *windows = &of[g - gp_gpu];
	bool stopped = false;

	gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
	for (;;) {
		struct gp_seen seen;
		gp_windows_seen(g, &seen);
		gp_forget_closed(g);
		uint64_t now = gp_now_ns(), wait = blp_put_off(windows, g, now), next = 0;
		bool want = windows->wanted; // what opens from here on is seen in the next look
		if (want || stopped || g->forced || debt.ns) {
			next = account(g, &debt, stopped, now);
			want = want && gp_heeds_windows(g);
		} else {
			debt.at_ns = now;
		}
		for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++)
			if (blp_domains[i]->gpu == g && want)
				gp_blp_stop(blp_domains[i], GP_BLP_WINDOW);
		for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++) {
			struct gp_domain *d = blp_domains[i];
			if (d->gpu != g)
				continue;
			if (gp_blp_given_up(d) && blp_is_closed(d)) // the thread that would end the stop may wait for its end
				gp_blp_resume(d, GP_BLP_WINDOW | GP_BLP_ASKED | GP_BLP_HELD);
			else if (want)
				gp_blp_drain(d);
			else if (d->reasons & GP_BLP_WINDOW)
				gp_blp_resume(d, GP_BLP_WINDOW);
		}
		if (!want && !g->forced)
			next = 0;
		next = next ? next : MOVED_NS;
		if (wait && next > wait)
			next = wait;
		if (narrow(g) && next > NARROW_NS)
			next = NARROW_NS;
		stopped = want;
		gp_wait_windows(&seen, next);
	}
}
