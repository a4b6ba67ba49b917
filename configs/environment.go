package configs

import (
	"fmt"
	"strings"
)

// Levels is how many priority levels there are; level 0 is the highest.
const Levels = 8

// Priority is a process's role. Off means that the library stays out of the way.
type Priority struct {
	On    bool
	Level int // 0 (lc, highest) to 7 (be, lowest)
}

// ParsePriority reads the value of GPREEMPT_PRIORITY.
func ParsePriority(value string) (Priority, error) {
	switch value {
	case "", "off":
		return Priority{}, nil
	case "lc":
		return Priority{On: true, Level: 0}, nil
	case "be":
		return Priority{On: true, Level: Levels - 1}, nil
	}
	if len(value) == 1 && value[0] >= '0' && value[0] < '0'+Levels {
		return Priority{On: true, Level: int(value[0] - '0')}, nil
	}
	return Priority{}, fmt.Errorf("GPREEMPT_PRIORITY = %s: must be lc, be, off, or a level from 0 (highest, lc) to %d (lowest, be)", show(value), Levels-1)
}

// String is the inverse of ParsePriority.
func (p Priority) String() string {
	switch {
	case !p.On:
		return "off"
	case p.Level == 0:
		return "lc"
	case p.Level == Levels-1:
		return "be"
	}
	return fmt.Sprint(p.Level)
}

// ApplyLogEnv lets the value of GPREEMPT_LOG, "level" or "level:/path/file", override the log settings.
// The config is unchanged on error and for an empty value.
func ApplyLogEnv(c *Config, value string) error {
	if value == "" {
		return nil
	}
	level, file, hasFile := strings.Cut(value, ":")
	if !isLevel(level) || hasFile && (file == "" || !isFile(file)) {
		return fmt.Errorf("GPREEMPT_LOG = %s: must be a level (%s), or level:/path/file", show(value), levelsAllowed)
	}
	c.Log.Level = level
	if hasFile {
		c.Log.File = file
	}
	return nil
}

// LogLevels are the names of the levels of all logs, from the one that says most.
var LogLevels = []string{"trace", "debug", "info", "warn", "error", "off"}

// LogTimes is how all logs write the time: RFC 3339 with the milliseconds.
const LogTimes = "2006-01-02T15:04:05.000Z07:00"
