package persistentvolume_test

import (
	"testing"
	"testing/synctest"
	"time"
)

// What a long game has found once: a volume is destroyed under its claim, the
// process dies while it deals with that, the claim goes, and a claim and a volume
// come that are for each other. Whether the claim got the volume depended on what
// ran first.
func TestAVolumeComesBackAfterACrashForAnotherClaim(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			err := play(t, newWorld(t, storageClass("made", made)).withStorage(), []action{
				{Do: "volume", Vol: 3, Size: 3, Pause: time.Minute},
				{Do: "claim", Claim: 1, Size: 2, Pause: time.Minute},
				{Do: "volume", Vol: 0, Size: 1},
				{Do: "destroy volume", Vol: 3, Pause: time.Millisecond},
				{Do: "crash", Claim: 1, Vol: 1, Size: 2},
				{Do: "delete volume", Vol: 0, Pause: time.Millisecond},
				{Do: "delete claim", Claim: 1},
				{Do: "claim", Claim: 3, Size: 1},
				{Do: "volume", Vol: 3, Size: 1},
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
