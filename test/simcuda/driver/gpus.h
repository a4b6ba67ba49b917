// gpus.h - facts of the GPUs that the simulated driver and the simulated management library both report. A slice of a GPU (MIG) is given by
// its number, and the whole by -1.
#ifndef SIM_GPUS_H
#define SIM_GPUS_H

#include "engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIM_GPUS 8
#define SIM_SLICES 7
static inline int sim_number(const char *variable, int otherwise, int most)
{
	const char *e = getenv(variable);
	int n = e && *e ? atoi(e) : otherwise;
	return n < 0 ? 0 : n > most ? most : n;
}
static inline int sim_gpus(void) { return sim_number("SIMCUDA_DEVICES", 1, SIM_GPUS); }
static inline int sim_slices(void) { return sim_number("SIMCUDA_MIG", 0, SIM_SLICES); } // of each GPU; 0: it is whole
static inline void sim_uuid_of(int gpu, int slice, uint8_t uuid[16])
{
	static const uint8_t base[16] = {0x51, 0x6d, 0x75, 0x6c, 0xa7, 0xed, 0x42, 0x00,
					 0x8d, 0x00, 0x48, 0x20, 0x00, 0x51, 0x4d, 0x00};
	memcpy(uuid, base, 16);
	uuid[14] = (uint8_t)(base[14] + slice + 1);
	uuid[15] = (uint8_t)gpu;
}
static inline int sim_uuid_text(int gpu, int slice, char *text, size_t size)
{
	uint8_t u[16];
	sim_uuid_of(gpu, slice, u);
	return snprintf(text, size, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
			slice < 0 ? "GPU" : "MIG", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10],
			u[11], u[12], u[13], u[14], u[15]);
}
static inline void sim_folder(char *path, size_t size)
{
	const char *e = getenv("SIMCUDA_DIR");
	if (e && *e)
		snprintf(path, size, "%s", e);
	else
		snprintf(path, size, "/dev/shm/simcuda-%u", (unsigned)geteuid());
}
static inline void sim_state(char *path, size_t size, int gpu, int slice)
{
	sim_folder(path, size);
	size_t n = strlen(path);
	if (slice < 0)
		snprintf(path + n, size - n, "/device%d.v%u", gpu, ENGINE_LAYOUT);
	else
		snprintf(path + n, size - n, "/device%d.slice%d.v%u", gpu, slice, ENGINE_LAYOUT);
}

#endif
