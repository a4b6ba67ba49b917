package configs

import (
	"fmt"
	"strconv"
	"strings"
)

// MemoryLimit is the most memory that a process may have on a GPU; the zero value is no limit.
type MemoryLimit struct {
	MB   uint64
	Part float64 // of the GPU's memory, instead
}

// MemoryLimitAllowed says what ParseMemoryLimit reads.
const MemoryLimitAllowed = `a whole number with MB or GB (1 GB = 1024 MB), as "10GB", or with %, 1 to 100, as "40%" of the GPU's memory; or "" for no limit`

const mostMB = 100_000_000

// OwnMemoryLimitAllowed says what ParseOwnMemoryLimit reads.
const OwnMemoryLimitAllowed = "a whole number with MB or GB (1 GB = 1024 MB), as 10GB, or with %, 1 to 100, as 40% of the GPU's memory; or none"

// ParseMemoryLimit reads the value of memory.limit.
func ParseMemoryLimit(text string) (limit MemoryLimit, ok bool) {
	if text == "" {
		return limit, true
	}
	for unit, mb := range map[string]uint64{"%": 0, "MB": 1, "GB": 1 << 10} {
		number, is := strings.CutSuffix(text, unit)
		if !is {
			continue
		}
		n, err := strconv.ParseUint(number, 10, 32)
		switch {
		case err != nil || n == 0:
			return limit, false
		case mb == 0:
			return MemoryLimit{Part: float64(n) / 100}, n <= 100
		}
		return MemoryLimit{MB: n * mb}, n*mb <= mostMB
	}
	return limit, false
}

// ParseOwnMemoryLimit reads a limit of one program, which takes the place of memory.limit.
func ParseOwnMemoryLimit(text string) (MemoryLimit, error) {
	limit, ok := ParseMemoryLimit(text)
	if text == "none" {
		return MemoryLimit{}, nil
	}
	if !ok || text == "" {
		return MemoryLimit{}, fmt.Errorf("memory limit %q: must be %s", text, OwnMemoryLimitAllowed)
	}
	return limit, nil
}

// ApplyMemoryLimitEnv lets the value of GPREEMPT_MEMORY_LIMIT replace memory.limit. The config is unchanged on error and for an empty value.
func ApplyMemoryLimitEnv(c *Config, value string) error {
	if value == "" {
		return nil
	}
	limit, err := ParseOwnMemoryLimit(value)
	if err != nil {
		return fmt.Errorf("GPREEMPT_MEMORY_LIMIT: %w", err)
	}
	c.Memory.Limit = limit
	return nil
}
