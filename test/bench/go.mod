module github.com/gpreempt/gpreempt/test/bench

go 1.26.0

require (
	github.com/gpreempt/gpreempt v0.0.0
	github.com/spf13/cobra v1.10.2
	github.com/spf13/pflag v1.0.10
	golang.org/x/sys v0.49.0
)

require (
	github.com/BurntSushi/toml v1.6.0 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
)

replace github.com/gpreempt/gpreempt => ../..
