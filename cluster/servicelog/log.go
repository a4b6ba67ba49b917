// Package servicelog is the log of the services: its flag, its levels and its times.
package servicelog

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/rs/zerolog"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/internal/cli"
)

// Usage describes the flag --log of services.
var Usage = "what is written to standard error: " + strings.Join(configs.LogLevels, ", ")

// New is the log of a service, from a level on.
func New(out io.Writer, level string) (zerolog.Logger, error) {
	if !slices.Contains(configs.LogLevels, level) {
		return zerolog.Nop(), cli.Usage(fmt.Errorf("--log %s: must be one of %s", level, strings.Join(configs.LogLevels, ", ")))
	}
	if level == "off" {
		return zerolog.Nop(), nil
	}
	from, err := zerolog.ParseLevel(level)
	zerolog.TimeFieldFormat = configs.LogTimes
	return zerolog.New(out).Level(from).With().Timestamp().Logger(), err
}
