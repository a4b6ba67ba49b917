package main

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/rivo/uniseg"
)

// Values that processes under the library publish, compared, and written for people.

func grown(before, after uint64) uint64 { return after - min(after, before) }

// amount writes bytes for people.
func amount(bytes uint64) string {
	switch {
	case bytes >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	case bytes >= 1<<20 || bytes == 0:
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d KiB", (bytes+1023)>>10)
}

func because(reasons []string) string {
	if len(reasons) == 0 {
		return ""
	}
	return " (" + strings.Join(reasons, ", ") + ")"
}

func slice(us uint32) string {
	switch {
	case us == 0:
		return "-"
	case us%1000 == 0:
		return fmt.Sprintf("%d ms", us/1000)
	}
	return fmt.Sprintf("%d us", us)
}

func orDash(list []string) string {
	if len(list) == 0 {
		return "-"
	}
	return strings.Join(list, " ")
}

// clean replaces characters that are not one column wide: names are the processes' own.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || uniseg.StringWidth(string(r)) != 1 {
			return '?'
		}
		return r
	}, text)
}
