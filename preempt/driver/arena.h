// arena.h - a thread gets its arena of malloc.
//
// The first call of malloc in a thread takes addresses, which there may be no more when the driver calls it on a thread of ours.
#ifndef GPREEMPT_ARENA_H
#define GPREEMPT_ARENA_H

#include <pthread.h>
#include <stdlib.h>

// One thread at a time: malloc takes twice as many addresses for a moment as it keeps, which the program may need.
static inline void gp_get_arena(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	pthread_mutex_lock(&lock);
	void *volatile block = malloc(1); // or gcc leaves both out
	free(block);
	pthread_mutex_unlock(&lock);
}

#endif
