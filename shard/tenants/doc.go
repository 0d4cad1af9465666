// Package tenants keeps what an operator grants each tenant (task.Tenant) in the registry, and gives each node all of it
// in memory. Who has no record has the defaults. Who acts on it is dispatcher/door, and dispatcher/core for weight and class.
//
// Nodes hear of a change by their watch, within a moment; nothing waits for them. A registry that is out of reach changes
// nothing: what is known holds.
//
// # Keys
//
// Under the prefix, values JSON, zero fields missing:
//
//	<tenant>/grant   {drain_max_ms, max_rows, max_bytes, rate, burst, weight, class, at}
//
// # Goroutines
//
// Run owns one, the watch. It is a hint: everything is listed again every minute.
package tenants
