// cancel.h - no call of CUDA is a place at which pthread_cancel ends a thread that has a lock or a count: others would wait for that for ever.
//
// Calls of the driver may be such places, and so are waits of pthreads.
#ifndef GPREEMPT_CANCEL_H
#define GPREEMPT_CANCEL_H

#include <pthread.h>
#include <stddef.h>

// The calling thread ends behind gp_cancel_on at the earliest. Returns what to put back.
static inline int gp_cancel_off(void)
{
	int before;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}
static inline void gp_cancel_on(int before) { pthread_setcancelstate(before, NULL); }

// until: of the condition's clock; NULL: without a bound
static inline void gp_wait_changed(pthread_cond_t *changed, pthread_mutex_t *lock, const struct timespec *until)
{
	int before = gp_cancel_off();
	if (until)
		pthread_cond_timedwait(changed, lock, until);
	else
		pthread_cond_wait(changed, lock);
	gp_cancel_on(before);
}

#endif
