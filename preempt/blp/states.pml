// states.pml - a model of a domain and its operations for Spin: a program that launches, a call that waits in the driver, a question whether all is
// over, stops, and the GPU, in every order. test/models runs it, and compares its transitions with states.c.
//
// One stream, OPERATIONS launches of BLOCKS blocks. Left out: the end of a domain (ABSENT), what is
// sent past a stop (UNGUARDED, CUT_UNGUARDED), and operations that are given up (QUEUED and CUT to DONE).
//
// With one of these defined, a rule is broken on purpose, and Spin has to find an error: ONE_LOOK, CHANGES_ALONE, STATE_ALONE, UNLOCKED_SEND,
// LOGS_WHILE_CLOSING, DONE_TOO_EARLY.

#define STOPS 2
#define OPERATIONS 2
#define BLOCKS 2

mtype:state = { RUNNING, RETIRED, CLOSING, HELD, NARROW, FREEZING, STOPPING, QUIET, LATE, STOPPED }
mtype:stage = { QUEUED, SENT, CUT, DONE }

mtype:state state = RUNNING;
mtype:stage stage[OPERATIONS];
byte logged;               // operations in the log
byte ran[OPERATIONS];      // blocks that have run
chan driver = [OPERATIONS] of { byte };
byte unfinished;           // launches that the driver has
bool flag;                 // blocks that have not begun do not begin
byte changes;              // stops and resumptions (blp_changes)
byte waits;                // calls that wait in the driver (driver_waits)
bool locked;               // gp_domain.lock
bool refused;              // by the driver: what was cut is lost, and the program is told
bool programDone, stopsDone;

inline lock() { atomic { !locked; locked = true } }
inline unlock() { locked = false }

#define closed(s) ((s) != RUNNING && (s) != RETIRED)

// The three ways of blp_become: where a domain closes for good its state comes first, then the change; where it opens, the other way round.
inline become(from, to) { assert(state == from); state = to }
inline closes(from, to) { assert(state == from); state = to; changes++ }
inline opens(from, to) { assert(state == from); changes++; state = to }

inline turn(operation, from, to) {
	assert(stage[operation] == from);
	stage[operation] = to
}

inline hand(operation) { atomic { unfinished++; driver!operation } }
#define idle (unfinished == 0)

active proctype gpu()
{
	byte now;
end:
	do
	:: driver?<now> ->
		do
		:: ran[now] == BLOCKS -> break
		:: ran[now] < BLOCKS && flag -> break
		:: ran[now] < BLOCKS && !flag ->
			assert(refused || now == 0 || ran[now - 1] == BLOCKS); // No operation overtakes.
			ran[now]++
			// The next block looks at the flag again.
		od;
		atomic { driver?now; unfinished-- }
	od
}

active proctype program()
{
	bool sends;
	do
	:: logged == OPERATIONS -> break
	:: else ->
#ifdef UNLOCKED_SEND
		sends = !closed(state);
#endif
		lock();
#ifdef LOGS_WHILE_CLOSING
		sends = !closed(state);
#endif
#if !defined UNLOCKED_SEND && !defined LOGS_WHILE_CLOSING
		atomic { state != CLOSING -> sends = !closed(state) } // blp_is_stopped: it may yet be postponed
#endif
		if
		:: sends ->
			stage[logged] = SENT;
			hand(logged)
		:: else ->
			stage[logged] = QUEUED
		fi;
		logged++;
		unlock()
	od;
	programDone = true
}

// A call that waits in the driver, with the driver's lock, for all that was launched (enter in take.c).
active proctype caller()
{
	lock();
	waits++;
	if
	:: closed(state) ->
		waits--;
		unlock()
	:: else ->
		unlock();
		do
		:: idle -> break
		:: else -> assert(!flag) // A stop would wait for the driver's lock.
		od;
		assert(!flag);
		lock();
		waits--;
		unlock()
	fi
}

// A question whether all that is logged is over (is_over in event.c). The driver answers without a lock.
active proctype question()
{
	byte upto, before;
	bool answer;
	lock();
	upto = logged;
	before = changes;
	unlock();
	answer = idle;
	lock();
	if
#ifdef STATE_ALONE
	:: answer && !closed(state) ->
#else
#ifdef CHANGES_ALONE
	:: answer && changes == before ->
#else
	:: answer && !closed(state) && changes == before ->
#endif
#endif
		assert(refused || upto < 1 || ran[0] == BLOCKS);
		assert(refused || upto < 2 || ran[1] == BLOCKS)
	:: else
	fi;
	unlock()
}

inline send(operation) {
	if
	:: stage[operation] == CUT -> turn(operation, CUT, SENT)
	:: stage[operation] == QUEUED -> turn(operation, QUEUED, SENT)
	fi;
	hand(operation)
}

// What is ready to be sent, in the log's order.
inline sendAll(most) {
	do
	:: at == logged || sent == most -> break
	:: at < logged && sent < most ->
		if
		:: stage[at] == CUT || stage[at] == QUEUED -> send(at); sent++
		:: else
		fi;
		at++
	od;
	at = 0;
	sent = 0
}

// It is known what was cut. The lock is held.
inline classify() {
	d_step { // the GPU is idle, and the lock keeps all others out
		at = 0;
		do
		:: at == logged -> break
		:: at < logged ->
			if
			:: stage[at] == SENT && ran[at] == BLOCKS -> turn(at, SENT, DONE)
			:: stage[at] == SENT && ran[at] < BLOCKS -> turn(at, SENT, CUT)
			:: else
			fi;
			at++
		od;
		at = 0
	}
}

// The driver refuses a call of a stop.
inline giveUp(from) {
	refused = true;
	flag = false;
	become(from, HELD);
	goto resume
}

// Blocks that have begun run to their end.
inline stopBlocks() {
	lock();
	become(HELD, FREEZING);
	flag = true;
	unlock();
	if
	:: become(FREEZING, STOPPING)
	:: giveUp(FREEZING)
	fi;
#ifndef DONE_TOO_EARLY
	if
	:: idle -> become(STOPPING, QUIET)
	:: !idle -> become(STOPPING, LATE)
	:: giveUp(STOPPING)
	fi;
	if
	:: state == LATE && idle
	:: state == LATE -> giveUp(LATE)
	:: state == QUIET
	:: state == QUIET -> giveUp(QUIET)
	fi;
#else
	become(STOPPING, QUIET);
#endif
	lock();
	classify();
	if
	:: state == QUIET -> become(QUIET, STOPPED)
	:: state == LATE -> become(LATE, STOPPED)
	fi;
	unlock()
}

// The first operation that the driver does not have goes on in a part of the SMs, behind what the driver has.
inline goNarrow(from) {
	lock();
	flag = false;
	become(from, NARROW);
	sendAll(1);
	unlock();
	become(NARROW, HELD)
}

active proctype stopper()
{
	byte stops, at, sent;
	do
	:: stops == STOPS || state == RETIRED -> break
	:: else ->
		stops++;
		if
		:: waits > 0 -> goto postponed
		:: else
		fi;
		become(RUNNING, CLOSING);
#ifndef ONE_LOOK
		if
		:: waits > 0 ->
			opens(CLOSING, RUNNING);
			goto postponed
		:: else
		fi;
#endif
		closes(CLOSING, HELD);
		if
		:: goto resume // it only holds back
		:: goNarrow(HELD); // nothing is to be cut
			goto resume
		:: stopBlocks()
		fi;
		if
		:: flag = false;
			become(STOPPED, HELD)
		:: goNarrow(STOPPED);
			if
			:: skip
			:: stopBlocks(); // a window opens, or the width is taken away
				flag = false;
				become(STOPPED, HELD)
			fi
		fi;
resume:
		lock();
		sendAll(OPERATIONS);
		if
		:: !refused -> opens(HELD, RUNNING)
		:: refused -> opens(HELD, RETIRED) // no stop comes any more
		fi;
		unlock();
postponed:
		skip
	od;
	stopsDone = true
}

// Everything runs exactly once, whatever was stopped.
active proctype all_run()
{
	(programDone && stopsDone && idle);
	assert(refused || ran[0] == BLOCKS && ran[1] == BLOCKS)
}
