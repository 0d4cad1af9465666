// Package shardtest is the conformance suite for registries that membership runs on (member.KV): the
// memory twin runs it in a synctest bubble, etcd in real time, so that what is tested with the twin holds
// with etcd. Each case starts real Members and watches them from outside.
package shardtest
