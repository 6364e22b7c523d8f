// # The checks
//
//   - contract/volume-name: GetVolumeName returns the same name for every spec that means the same data, also in another process. (on the fake only)
//   - lifecycle/setup: SetUp makes the volume appear at GetPath, whose parents it creates, with its contents, modes, owner and mount options.
//   - lifecycle/setup-n-times: SetUp is idempotent: on a volume that is set up already it succeeds, and mounts nothing a second time.
//   - lifecycle/teardown: TearDown unmounts the volume and removes its directory and what the plugin keeps beside it.
package volumetest
