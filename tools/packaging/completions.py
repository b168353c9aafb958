# SPDX-License-Identifier: Apache-2.0
"""Writes the completion of a program's subcommands, options and their values for bash, zsh and
fish. A function gets the name of the program, its Help, and the Help of each subcommand by name
(program_docs.py), and returns the text of the shell's file."""


def value_cases(command, text):
    """Returns lines of a case over command and option, each of which completes the value of an
    option."""
    lines = []
    for entry in text.sections.get('Options', []):
        for name in entry.names if entry.takes_a_value else []:
            if entry.words:
                how = f'fsccl_of "{" ".join(entry.words)}"'
            elif entry.is_number:
                how = 'COMPREPLY=()'
            else:
                how = 'COMPREPLY=($(compgen -f -- "$word"))'
            lines.append(f'    "{command} {name}") {how}; return ;;')
    return lines


def bash(name, top, commands):
    function = '_' + name.replace('-', '_')
    known = {
        command: [word for entry in text.sections.get('Options', []) for word in entry.names]
        for command, text in commands.items()
    }
    cases = [
        line
        for command, text in [('', top), *commands.items()]
        for line in value_cases(command, text)
    ]
    lines = [
        f"# Completion of {name} for bash, made from the program's own --help.",
        f'{function}() {{',
        '  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command= at',
        '  fsccl_of() { COMPREPLY=($(compgen -W "$1" -- "$word")); }',
        '  for ((at = 1; at < COMP_CWORD; ++at)); do',
        '    case ${COMP_WORDS[at]} in',
        f'      {"|".join(commands) or "no-command"}) command=${{COMP_WORDS[at]}}; break ;;',
        '    esac',
        '  done',
        '  case "$command $before" in',
        *cases,
        '  esac',
        '  if [[ $command && $word != -* ]]; then COMPREPLY=($(compgen -f -- "$word")); return; fi',
        '  case $command in',
        *(f'    {command}) fsccl_of "{" ".join(words)}" ;;' for command, words in known.items()),
        f'    *) fsccl_of '
        f'"{" ".join([*commands, *(word for entry in top.sections["Options"] for word in entry.names)])}" ;;',
        '  esac',
        '}',
        f'complete -o filenames -F {function} {name}',
    ]
    return '\n'.join(lines) + '\n'


def zsh_quoted(text):
    """Escapes a text for single quotes in a specification of _arguments."""
    for sign in '\\[]:':
        text = text.replace(sign, '\\' + sign)
    return text.replace("'", "'\\''")


def zsh_arguments(text):
    """Returns the specifications for _arguments of the options of a program or a subcommand."""
    lines = []
    for entry in text.sections.get('Options', []):
        if not entry.takes_a_value:
            value = ''
        elif entry.words:
            value = f':value:({" ".join(entry.words)})'
        else:
            value = ':value:' if entry.is_number else ':file:_files'
        lines += [f"'{name}[{zsh_quoted(entry.text)}]{value}'" for name in entry.names]
    return lines


def zsh(name, top, commands):
    function = '_' + name.replace('-', '_')
    lines = [
        f'#compdef {name}',
        f"# Completion of {name} for zsh, made from the program's own --help.",
        f'{function}() {{',
        '  local state line',
        '  local -a commands=(',
        *(f"    '{command}:{zsh_quoted(text.about)}'" for command, text in commands.items()),
        '  )',
        '  _arguments -C \\',
        *(f'    {argument} \\' for argument in zsh_arguments(top)),
        "    '1:command:->command' '*::argument:->argument'",
        '  case $state in',
        '    command) _describe command commands ;;',
        '    argument)',
        '      case $line[1] in',
    ]
    for command, text in commands.items():
        arguments = ' '.join([*zsh_arguments(text), "'*:file:_files'"])
        lines.append(f'        {command}) _arguments {arguments} ;;')
    lines += ['      esac ;;', '  esac', '}', f'{function} "$@"']
    return '\n'.join(lines) + '\n'


def fish_options(name, condition, text):
    lines = []
    for entry in text.sections.get('Options', []):
        described = entry.text.replace('\\', '\\\\').replace("'", "\\'")
        if not entry.takes_a_value:
            value = ''
        elif entry.words:
            value = f" -x -a '{' '.join(entry.words)}'"
        else:
            value = ' -x' if entry.is_number else ' -r'
        names = ' '.join(
            f'-l {word[2:]}' if word.startswith('--') else f'-s {word[1:]}' for word in entry.names
        )
        lines.append(f"complete -c {name} -n '{condition}' {names}{value} -d '{described}'")
    return lines


def fish(name, top, commands):
    no_command = f'not __fish_seen_subcommand_from {" ".join(commands)}'
    lines = [
        f"# Completion of {name} for fish, made from the program's own --help.",
        *fish_options(name, no_command, top),
    ]
    for command, text in commands.items():
        about = text.about.replace('\\', '\\\\').replace("'", "\\'").replace('\n', ' ')
        lines.append(f"complete -c {name} -n '{no_command}' -f -a {command} -d '{about}'")
        lines += fish_options(name, f'__fish_seen_subcommand_from {command}', text)
    return '\n'.join(lines) + '\n'
