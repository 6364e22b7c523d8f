// Package processes runs containers as processes of the machine: a podlife.Runtime
// without images. The machine's root is a container's root, with the machine's network,
// and its volumes lie over that at their mount paths. Processes end with the agent.
// Held runs nothing at all.
package processes
