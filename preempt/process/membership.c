// membership.c - whether this process takes part: not while the driver has it locked or checkpointed (cuCheckpointProcess*).
//
// The driver knows the state. The program's own calls tell it here. Another process's calls do not: gp_membership_doubt asks the driver
// then, as soon as something looks like such a call, and again until the process runs.
// Writers of the state: threads that heard something, under the lock. Readers: all threads, without it.
// Pairing: the writer calls gp_membership_changed, which carries out the latest state. That publishes, arms or waits under a lock that the
// reader takes too, or behind a store that the reader looks at.
// Questions have numbers: an answer is dropped if its question is older than what is known. Without numbers this breaks: the program unlocks
// itself, and an earlier question says that it is locked.
#include "preempt/process/process.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // what follows; no call of the driver
static uint64_t asked, heard;                            // numbers of questions
static uint32_t locking;                                 // threads in calls that lock this process

enum gp_membership gp_membership_next(enum gp_membership is, enum gp_membership_event event)
{
	switch (event) {
	case GP_LOCK_BEGINS: return is == GP_JOINED ? GP_LEAVING : is;
	case GP_LOCK_REFUSED: return is == GP_LEAVING ? GP_JOINED : is;
	case GP_SEEN_RUNNING: return is == GP_LEAVING ? is : GP_JOINED; // the lock is on its way
	case GP_SEEN_LOCKED: return GP_LOCKED;
	case GP_SEEN_CHECKPOINTED: return GP_CHECKPOINTED;
	case GP_SEEN_FAILED: return GP_UNUSABLE;
	}
	return is;
}

static void go(enum gp_membership_event event)
{
	enum gp_membership was = gp_membership, is = gp_membership_next(was, event);
	if (is == GP_JOINED && locking)
		is = GP_LEAVING;
	gp_membership = is;
	if (is == GP_JOINED && was != is)
		gp_rejoined++;
}

uint64_t gp_membership_question(void)
{
	pthread_mutex_lock(&lock);
	uint64_t number = ++asked;
	pthread_mutex_unlock(&lock);
	return number;
}

void gp_membership_answer(uint64_t number, enum gp_membership_event event)
{
	pthread_mutex_lock(&lock);
	if (number > heard) {
		heard = number;
		go(event);
	}
	pthread_mutex_unlock(&lock);
}

void gp_membership_lock_begins(void)
{
	pthread_mutex_lock(&lock);
	locking++;
	go(GP_LOCK_BEGINS);
	pthread_mutex_unlock(&lock);
}

void gp_membership_lock_ends(bool locked)
{
	pthread_mutex_lock(&lock);
	locking--;
	if (locked) {
		heard = ++asked;
		go(GP_SEEN_LOCKED);
	} else if (!locking) {
		go(GP_LOCK_REFUSED);
	}
	pthread_mutex_unlock(&lock);
}
