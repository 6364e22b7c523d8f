package glusterfs_test

import (
	"os"
	"testing"

	"github.com/podvol/podvol/util/testenv/testtool"
)

func TestMain(m *testing.M) {
	if root := os.Getenv(agentVar); root != "" {
		os.Exit(agent(root, os.Getenv(cgroupVar)))
	}
	testtool.Shorten()
	os.Exit(m.Run())
}
