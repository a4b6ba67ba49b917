// request.c - see request.h.
#define _GNU_SOURCE
#include "preempt/code/request.h"
#include "preempt/process/process.h"

#include <sys/mman.h>

static struct {
	pthread_mutex_t lock;
	struct gp_request *first, **last;
	_Atomic uint32_t made; // futex
} requests = {.lock = PTHREAD_MUTEX_INITIALIZER};

void gp_request_ask(struct gp_request *r)
{
	r->next = NULL;
	r->answered = 0;
	pthread_mutex_lock(&requests.lock);
	if (!requests.first)
		requests.last = &requests.first;
	*requests.last = r;
	requests.last = &r->next;
	requests.made++;
	pthread_mutex_unlock(&requests.lock);
	gp_futex_wake(&requests.made, 1, false);
	while (!r->answered)
		gp_futex_wait(&r->answered, 0, 0, false);
}

struct gp_request *gp_request_next(void)
{
	for (;;) {
		pthread_mutex_lock(&requests.lock);
		uint32_t seen = requests.made;
		struct gp_request *r = requests.first;
		if (r)
			requests.first = r->next;
		pthread_mutex_unlock(&requests.lock);
		if (r)
			return r;
		gp_futex_wait(&requests.made, seen, 0, false);
	}
}

void gp_request_answer(struct gp_request *r, int answer)
{
	r->answer = (enum gp_answer)answer;
	r->answered = 1; // from here on it may be gone: waking an address that nobody waits at does no harm
	gp_futex_wake(&r->answered, 1, false);
}

void gp_picked_unmap(struct gp_picked *p)
{
	if (p->form)
		munmap(p->memory, p->bytes);
	*p = (struct gp_picked){0};
}
