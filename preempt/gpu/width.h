// width.h - how many SMs the requests of this process leave to lower levels, by kind of request. It knows no clock, GPU or lock:
// who calls holds one, and says how long windows lasted.
#ifndef GPREEMPT_WIDTH_H
#define GPREEMPT_WIDTH_H

#include "preempt/gpu/harm.h"

enum {
	GP_WIDTH_KINDS = 64,  // that are known at a time; the least recently used one goes
	GP_WIDTH_LEVELS = 4,  // 0: nothing is left, then 1/8, 1/4 and 1/2 of the SMs
	GP_WIDTH_SAMPLES = 8, // windows by which a level is judged
};

// The latest windows: how long they had work, and of how many operations.
struct gp_durations {
	uint64_t ns[GP_WIDTH_SAMPLES];
	uint32_t operations[GP_WIDTH_SAMPLES];
	uint32_t count; // ever, since it was emptied
};

// How long windows of so many operations have work while nothing is left: a straight line through the middle of the windows that were seen.
struct gp_yardstick {
	uint64_t ns[2]; // of the two windows in the middle: as many are above the line as below
	uint32_t operations[2];
	uint64_t each_ns;     // that one more operation takes
	uint64_t median_ns;   // of all the windows
	uint32_t least, most; // operations that windows had; 0: there is no yardstick
};

// Zero: nothing is known.
struct gp_width {
	struct gp_durations alone;  // while nothing was left
	struct gp_durations beside; // while the level was left
	struct gp_yardstick yardstick;
	uint32_t windows;           // since the kind is known
	uint32_t stood;             // windows that were judged since the level was taken up
	uint32_t unknown;           // operations of a window that the yardstick says nothing of; 0: there is none
	uint32_t asked;             // windows that have left nothing for that
	uint8_t level;              // what its windows leave, but for those that measure the yardstick
	uint8_t too_wide;           // the level that was found so last; 0: none
	uint32_t retry_after;       // the number of windows at which that one may be tried again
	uint32_t patience;          // windows that it waited for that last; 0: it did not
	struct gp_yardstick before; // as it was when the level was given up; none: none was, or that is over
	uint8_t given_up;           // that level
	bool had_stood;             // it was not on trial any more
	bool harmed;                // it made windows slow, and not by chance
	bool had_chance;            // it was given up and taken up again, and has not stood since
	uint8_t excused;            // slow windows that others took the blame for, since it stood
};

struct gp_widths {
	uint64_t key[GP_WIDTH_KINDS]; // 0: free
	uint64_t used[GP_WIDTH_KINDS];
	struct gp_width width[GP_WIDTH_KINDS];
	uint64_t clock;
	uint32_t open;          // place of the kind whose window is open, and 1 more; 0: none is
	uint32_t level;         // that this window leaves
	bool slow;              // it was so slow that it leaves nothing any more
	struct gp_width before; // the kind of the latest slow window, as it was before that
	uint32_t before_of;     // its place, and 1 more; 0: there is none
	uint64_t before_key;
	uint64_t kinds;    // whose width is known now
	uint64_t too_wide; // times that a level was found so
};

uint32_t gp_width_opens(struct gp_widths *, uint64_t key); // the level that the window leaves. Any key is a kind
// The window has had work for so long, for so many operations, and its work goes on. True: it is to leave nothing any more.
bool gp_width_falls(struct gp_widths *, uint64_t busy_ns, uint64_t operations);
// What such a window says of what runs beside it; GP_UNJUDGED: nothing. Comes before gp_width_closes.
enum gp_verdict gp_width_verdict(const struct gp_widths *, uint64_t busy_ns, uint64_t operations);
// The latest window that was slow was so because of who ran beside it: for the width it was none. What others say is believed a few times only.
void gp_width_excuse(struct gp_widths *);
// The window is over. judged: how long it had work, for so many operations, says how much it suffered from what it left.
void gp_width_closes(struct gp_widths *, uint64_t busy_ns, uint64_t operations, bool judged);
uint32_t gp_width_sms(uint32_t level, uint32_t sms); // of a GPU with so many; green contexts have SMs in multiples of 8

#endif
