package volumetest

// lifecycleChecks are about SetUp and TearDown when nothing goes wrong.
func lifecycleChecks() []check {
	return []check{
		{
			name:   "lifecycle/setup",
			proves: "SetUp makes the volume appear at GetPath, whose parents it creates, with its contents, modes, owner and mount options.",
			each: func(k *kit, c Case) {
				v := k.node(c).volume("a")
				v.mustSetUp()
				v.assertShown()
			},
		},
		{
			name:   "lifecycle/setup-n-times",
			proves: "SetUp is idempotent: on a volume that is set up already it succeeds, and mounts nothing a second time.",
			each:   checkSetUpTwice,
		},
		{
			name:   "lifecycle/teardown",
			proves: "TearDown unmounts the volume and removes its directory and what the plugin keeps beside it.",
			each: func(k *kit, c Case) {
				n := k.node(c)
				v := n.volume("a")
				v.mustSetUp()
				v.mustTearDown()
				v.assertGone()
				n.AssertTornDown(k)
			},
		},
	}
}

func checkSetUpTwice(k *kit, c Case) {
	n := k.node(c)
	v := n.volume("a")
	v.mustSetUp()
	mounts := len(n.mounts(k))
	for range 3 {
		v.mustSetUp()
		v.assertShown()
		if got := len(n.mounts(k)); got != mounts {
			k.Fatalf("%d mounts after another SetUp, %d before", got, mounts)
		}
	}
}
